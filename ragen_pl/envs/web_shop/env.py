"""``WebShop``: buy what an instruction describes (Yao et al. 2022, arXiv 2207.01206)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from ragen_pl.envs.base import one_of
from ragen_pl.envs.data_files import DataRow, read_named_rows, read_rows
from ragen_pl.envs.replay import ReplayState
from ragen_pl.envs.splits import Split, enter_split
from ragen_pl.envs.tools.index import Engine, checked_engine, index_of
from ragen_pl.envs.web_shop import catalogue
from ragen_pl.envs.web_shop.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    SUBPAGES,
    Part,
    Visit,
    parts_of,
    plain_text,
    rich_text,
    shown,
)
from ragen_pl.envs.web_shop.products import (
    LONGEST_ASIN,
    Goal,
    Instruction,
    Product,
    goal_of,
    read_human_instructions,
    read_instructions,
    read_products,
)
from ragen_pl.envs.web_shop.reward import score
from ragen_pl.errors import ConfigError

Observation = Literal["text", "text_rich"]
Reward = Literal["full", "score"]
_ACTION = re.compile(r"\s*(search|click)\[(.*)\]\s*", re.DOTALL | re.IGNORECASE)
_MOST_RESULTS = 50
_FULL = 1.0 - 1e-9
_TRIED = 200
"""Goals that are drawn to find one with the wanted number of wishes."""


@dataclass(frozen=True, slots=True)
class Shop:
    """The source of products and instructions; equal ones share an index.

    Args:
        items: File in the form of ``items_shuffle_1000.json``; None for a catalogue of our own.
        attributes: File in the form of ``items_ins_v2_1000.json``.
        human: File in the form of ``items_human_ins.json``; None for the instructions beside the
            attributes.
        size: Number of products of the own catalogue.
    """

    items: str | None
    attributes: str | None
    human: str | None
    size: int

    @property
    def products(self) -> Mapping[str, Product]:
        """The products by their numbers."""
        return _stock(self)[0]

    @property
    def instructions(self) -> Sequence[Instruction]:
        """What customers may want."""
        return _stock(self)[1]

    def documents(self) -> tuple[Product, ...]:
        """Return the products, for an index."""
        return tuple(self.products.values())


@lru_cache(maxsize=8)
def _stock(shop: Shop) -> tuple[dict[str, Product], tuple[Instruction, ...]]:
    """Read or generate the products and the instructions.

    Raises:
        ConfigError: if a file is missing, in another form, or has no instruction.
    """
    if shop.items is None or shop.attributes is None:
        own = catalogue.Catalogue(shop.size)
        items = tuple(DataRow("products", n, item) for n, item in enumerate(own.items))
        known = {asin: DataRow("products", 0, each) for asin, each in own.attributes.items()}
    else:
        items = read_rows(shop.items, "items")
        known = read_named_rows(shop.attributes, "attributes")
    products = read_products(items, known)
    if not products:
        raise ConfigError(
            f'items: {shop.items} has no product with an "asin" of at most {LONGEST_ASIN} '
            "characters"
        )
    if shop.human is None:
        key, instructions = "attributes", read_instructions(products, known)
    else:
        key = "human_instructions"
        instructions = read_human_instructions(products, shop.human)
    if not instructions:
        raise ConfigError(f"{key}: no instruction is for one of the {len(products)} products")
    return products, instructions


class WebShop(ReplayState):
    """A shop: search, look at products, choose options and buy what the instruction describes.

    Pages, actions (``search[words]``, ``click[button]``), fields and score are the original's.
    Only a purchase earns: 1 if its score is 1, else nothing, as in RAGEN-2; or its score. The
    products are a catalogue of our own; the original's files take its place.

    Args:
        items: File of products in the original's form (``items_shuffle_1000.json``); null for the
            own catalogue.
        attributes: File of attributes and instructions (``items_ins_v2_1000.json``), with
            ``items``.
        human_instructions: File of instructions that people wrote (``items_human_ins.json``); null
            for those in ``attributes``.
        products: Number of products of the own catalogue.
        fewest_wishes: Fewest attributes and options of an instruction.
        most_wishes: Most of them.
        results_per_page: Products on a page of results.
        observation: The page as one line with [SEP] between its parts, or as lines with buttons
            marked: the original's modes.
        reward: Reward of a purchase: 1 for the full score and 0 otherwise, or the score.
        engine: What ranks the products: SQLite, or the package bm25s (extra ``search``).
        split: ``train`` or ``eval`` for disjoint products to buy; ``all`` for every one.
        max_actions: Maximum actions per trajectory.
    """

    name = "web_shop"
    actions: tuple[str, ...] | None = None

    def __init__(  # noqa: PLR0913 (one argument per key)
        self,
        items: str | None = None,
        attributes: str | None = None,
        human_instructions: str | None = None,
        products: int = 200,
        fewest_wishes: int = 1,
        most_wishes: int = 10,
        results_per_page: int = 10,
        observation: Observation = "text_rich",
        reward: Reward = "full",
        engine: Engine = "sqlite",
        split: Split = "train",
        max_actions: int = 15,
    ) -> None:
        if (items is None) != (attributes is None):
            raise ValueError(
                f"attributes: {attributes} and items: {items} belong together: give both files, or "
                "none for the own catalogue"
            )
        if human_instructions is not None and items is None:
            raise ValueError(f"human_instructions: {human_instructions} needs items: name its file")
        if products < 10:
            raise ValueError(f"products: {products} is less than 10")
        if not 1 <= fewest_wishes <= most_wishes:
            raise ValueError(
                f"fewest_wishes: {fewest_wishes} is not between 1 and most_wishes, which is "
                f"{most_wishes}"
            )
        for key, value in (("results_per_page", results_per_page), ("max_actions", max_actions)):
            if value < 1:
                raise ValueError(f"{key}: {value} is not positive")
        self._shop = Shop(items, attributes, human_instructions, products)
        self.fewest_wishes, self.most_wishes = fewest_wishes, most_wishes
        self.results_per_page, self.max_actions = results_per_page, max_actions
        self.observation: Observation = one_of("observation", observation, Observation)
        self.reward: Reward = one_of("reward", reward, Reward)
        self.engine = checked_engine(engine)
        self.split: Split = one_of("split", split, Split)
        self._goal = self._goal_of(0)
        self._visit = Visit()

    @property
    def instruction(self) -> str:
        """The task in words."""
        return (
            "Buy a product that fits the instruction on the page.\n"
            "search[words] finds products; click[text] presses the button, the product or the "
            f"option of that text. Choose the options, then click[{BUY}]."
        )

    @property
    def actions_text(self) -> str:
        """The two forms of an action."""
        return "search[words], click[text]"

    def _goal_of(self, seed: int) -> Goal:
        """Draw the goal of a seed.

        Raises:
            ValueError: if no instruction has the wanted number of wishes.
        """
        rng = random.Random(f"web shop goal {seed}")
        instructions = self._shop.instructions
        for _ in range(_TRIED):
            goal = goal_of(instructions[rng.randrange(len(instructions))], rng)
            if self.fewest_wishes <= goal.num_wishes <= self.most_wishes:
                return goal
        raise ValueError(
            f"fewest_wishes: {self.fewest_wishes} and most_wishes: {self.most_wishes} leave none "
            f"of {_TRIED} instructions: widen them"
        )

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Open the shop with the instruction that the seed decides."""
        self._visit = Visit()
        enter_split(seed, self.split, self._want)
        return {"difficulty": str(self._goal.num_wishes)}

    def _want(self, seed: int) -> str:
        self._goal = self._goal_of(seed)
        return self._goal.product.asin

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Search or click; what is neither, or no button of the page, changes nothing."""
        match = _ACTION.fullmatch(action)
        kind, text = ("", "") if match is None else (match[1].lower(), match[2].strip())
        before = self._visit
        if kind == "search" and text:
            self._visit = replace(Visit(seen=before.seen), place="results", keywords=text.lower())
        elif kind == "click":
            self._click(text.lower())
        is_valid = self._visit != before or self._is_repeated(kind, text)
        bought = self._visit.place == "done"
        earned = self._score() if bought else 0.0
        success = bought and earned >= _FULL
        reward = float(success) if self.reward == "full" else earned
        return reward, bought, False, {"success": success, "score": earned, "valid": is_valid}

    def _is_repeated(self, kind: str, text: str) -> bool:
        """Return whether an action that changed nothing is one of the page's nonetheless."""
        known = {part.text.lower() for part in self._parts() if part.kind != "text"}
        return (kind == "search" and bool(text)) or (kind == "click" and text.lower() in known)

    def _score(self) -> float:
        return score(self._shop.products[self._visit.asin], self._goal, self._visit.chosen)

    def _click(self, text: str) -> None:
        """Press what has a text, if the page has it."""
        visit = self._visit
        pressed = [part for part in self._parts() if part.kind != "text"]
        fitting = [part for part in pressed if part.text.lower() == text]
        if not fitting:
            return
        part = next((part for part in reversed(fitting) if part.kind == "option"), fitting[-1])
        if part.kind == "link":
            seen = visit.seen | {part.text}
            self._visit = replace(visit, place="item", asin=part.text, chosen={}, seen=seen)
        elif part.kind == "option":
            chosen = {**visit.chosen, self._option_of(part.text): part.text}
            self._visit = replace(visit, chosen=chosen)
        else:
            self._visit = self._pressed(part.text)

    def _option_of(self, value: str) -> str:
        """Return the option that a value is of; of several, the last one, as in the original."""
        options = self._shop.products[self._visit.asin].options
        return next(name for name in reversed(list(options)) if value in options[name])

    def _pressed(self, button: str) -> Visit:
        """Return where a button leads."""
        visit = self._visit
        if button == BACK:
            return Visit(seen=visit.seen)
        if button == BUY:
            return replace(visit, place="done")
        if button in SUBPAGES:
            return replace(visit, place=SUBPAGES[button])
        if button == NEXT:
            return replace(visit, number=visit.number + 1)
        if button == PREVIOUS and visit.place == "results":
            return replace(visit, number=visit.number - 1)
        if button == PREVIOUS and visit.place == "item":
            return replace(visit, place="results", asin="", chosen={})
        return replace(visit, place="item") if button == PREVIOUS else visit

    def _results(self) -> Sequence[Product]:
        if not self._visit.keywords:
            return ()
        return _found(self._shop, self.engine, self._visit.keywords)

    def _parts(self) -> tuple[Part, ...]:
        visit = self._visit
        product = self._shop.products[visit.asin] if visit.asin else None
        results = self._results() if product is None else ()
        return parts_of(visit, self._goal.text, results, product, self.results_per_page)

    def render_text(self) -> str:
        """Return the page."""
        text = plain_text if self.observation == "text" else rich_text
        return text(self._parts())

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next action towards the product that the instruction was written for.

        It searches for the words of the instruction, at last for the product's name, and looks
        through the pages of results.
        """
        visit, goal = self._visit, self._goal
        wanted = goal.product
        if visit.place == "search":
            words = " ".join((*goal.attributes, wanted.query))
            is_first = f"search[{words}]" not in self.moves
            return "I search for it.", (f"search[{words if is_first else wanted.name}]",)
        if visit.place == "results":
            return self._expert_of_results(wanted)
        if visit.asin != wanted.asin:
            return "This is not it.", (f"click[{BACK}]",)
        if visit.place != "item":
            return "I go back.", (f"click[{PREVIOUS}]",)
        for name, values in wanted.options.items():
            value = next((each for each in values if each in goal.options), None)
            if value is not None and visit.chosen.get(name) != value:
                return f"I choose {value}.", (f"click[{value}]",)
        return "I buy it.", (f"click[{BUY}]",)

    def _expert_of_results(self, wanted: Product) -> tuple[str, tuple[str, ...]]:
        results, number = self._results(), self._visit.number
        on_page = shown(results, number, self.results_per_page)
        if any(each.asin == wanted.asin for each in on_page):
            return "There it is.", (f"click[{wanted.asin}]",)
        if any(each.asin == wanted.asin for each in results[number * self.results_per_page :]):
            return "I look further.", (f"click[{NEXT}]",)
        return "I search again.", (f"click[{BACK}]",)

    def vocabulary(self) -> Iterator[str]:
        """List the texts of pages and, of the own catalogue, its words and numbers."""
        yield from (f"{line}\n" for line in self.instruction.splitlines())
        yield from ("search[", "click[", "]", "[button] ", " [button_]\n", " [button_]")
        yield from ("[clicked button] ", " [clicked button_]\n", "[SEP]", "Instruction:\n")
        yield from ("WebShop\n", "Page ", " (Total results: ", ")\n", "Price: $", "Rating: N.A.\n")
        yield from (BACK, NEXT, PREVIOUS, BUY, *SUBPAGES, "Search", "Find me ", " with ", ", and ")
        yield from ("price lower than ", ".00 dollars", ".00", ".49", ".99", "$")
        yield from ("I search for it.", "There it is.", "I look further.", "I choose ", "I buy it.")
        if self._shop.items is None:
            yield from catalogue.pieces()
            yield from self._shop.products


@lru_cache(maxsize=2000)
def _found(shop: Shop, engine: Engine, keywords: str) -> tuple[Product, ...]:
    _, index = index_of(shop, engine)
    products = shop.documents()
    return tuple(products[number] for number in index.search(keywords, _MOST_RESULTS))
