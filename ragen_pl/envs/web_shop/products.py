"""Products and goals, read from files in the original's form."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PRICE = re.compile(r"\$([\d,]*\.?\d+)")
_PRICE_BOUNDS = tuple(10.0 * step for step in range(1, 100))
"""Upper limits of prices that an instruction may set."""
_NO_PRICE = 100.0
_LONGEST_ASIN = 10


@dataclass(frozen=True, slots=True)
class Product:
    """A product."""

    asin: str
    name: str
    query: str
    category: str
    """Names of categories, from the widest, with › between them."""
    description: str
    bullet_points: tuple[str, ...]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    """Values that may be chosen, by the option's name."""
    pricing: tuple[float, ...]
    """One price, or the lowest and the highest."""

    @property
    def price_tag(self) -> str:
        """The price as pages show it."""
        return " to ".join(f"${price}" for price in self.pricing)

    @property
    def price(self) -> float:
        """The price that is paid: of a range, one that the product's number decides."""
        low, high = self.pricing[0], self.pricing[-1]
        return low + (high - low) * random.Random(f"price {self.asin}").random()

    @property
    def title(self) -> str:
        """The name, for the index."""
        return self.name

    @property
    def text(self) -> str:
        """Everything else, for the index."""
        options = itertools.chain.from_iterable(self.options.values())
        return " ".join((self.description, *self.bullet_points, *options))


@dataclass(frozen=True, slots=True)
class Instruction:
    """A wish for a product, without the options and the price."""

    product: Product
    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None = None
    """Values of options that the text names; None has them drawn."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be bought."""

    product: Product
    """A product that has all that is wished for."""
    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_limit: float | None

    @property
    def num_wishes(self) -> int:
        """Number of attributes and options."""
        return len(self.attributes) + len(self.options)


def read_json(path: str, key: str) -> Any:
    """Read a file.

    Raises:
        ValueError: if there is none, or it is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{key}: {path} cannot be read ({error})") from error


def read_products(
    items: Iterable[Mapping[str, Any]], attributes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Product]:
    """Return products by their numbers; as in the original, the first of equal numbers counts.

    Args:
        items: The objects of ``items_shuffle.json``.
        attributes: The object of ``items_ins_v2.json``.

    Raises:
        ValueError: if one lacks what a product must have.
    """
    found: dict[str, Product] = {}
    for item in items:
        asin = str(item.get("asin", "nan"))
        if asin == "nan" or len(asin) > _LONGEST_ASIN or asin in found:
            continue
        try:
            found[asin] = _product(asin, item, attributes.get(asin, {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"items: the product {asin} is not in WebShop's form ({type(error).__name__}: "
                f"{error})"
            ) from error
    return found


def _product(asin: str, item: Mapping[str, Any], known: Mapping[str, Any]) -> Product:
    points = item.get("small_description") or []
    options = {
        str(name).lower(): tuple(
            str(each["value"]).strip().replace("/", " | ").lower() for each in contents
        )
        for name, contents in (item.get("customization_options") or {}).items()
        if contents
    }
    return Product(
        asin=asin,
        name=str(item["name"]),
        query=str(item["query"]).lower().strip(),
        category=str(item["product_category"]),
        description=str(item.get("full_description") or ""),
        bullet_points=tuple(map(str, points if isinstance(points, list) else [points])),
        attributes=tuple(map(str, known.get("attributes") or ())),
        options=options,
        pricing=_pricing(str(item.get("pricing") or "")),
    )


def _pricing(text: str) -> tuple[float, ...]:
    prices = tuple(float(price.replace(",", "")) for price in _PRICE.findall(text)[:2])
    return tuple(sorted(prices)) or (_NO_PRICE,)


def read_instructions(
    products: Mapping[str, Product],
    attributes: Mapping[str, Mapping[str, Any]],
    human: Mapping[str, Sequence[Mapping[str, Any]]] | None,
) -> tuple[Instruction, ...]:
    """Return the instructions for the products, in their order; those without attributes are left
    out, as in the original.

    Args:
        products: The products by their numbers.
        attributes: The object of ``items_ins_v2.json``.
        human: The object of ``items_human_ins.json``, whose instructions are then used.
    """
    found = []
    for asin, product in products.items():
        if human is None:
            known = attributes.get(asin, {})
            text, wished = known.get("instruction"), known.get("instruction_attributes")
            if text and wished:
                found.append(Instruction(product, str(text), tuple(map(str, wished))))
            continue
        for each in human.get(asin, ()):
            if each["instruction_attributes"]:
                found.append(
                    Instruction(
                        product,
                        str(each["instruction"]).strip("."),
                        tuple(map(str, each["instruction_attributes"])),
                        tuple(map(str, each.get("instruction_options") or ())),
                    )
                )
    return tuple(found)


def goal_of(instruction: Instruction, rng: random.Random) -> Goal:
    """Return a goal: the instruction with one value of each option, and a limit of the price.

    Of an instruction that names its options, the price alone is drawn.
    """
    product, text, options = instruction.product, instruction.text, instruction.options
    if options is None:
        drawn = {name: rng.choice(product.options[name]) for name in sorted(product.options)}
        options = tuple(drawn.values())
        named = ", and ".join(f"{name}: {value}" for name, value in drawn.items())
        text += f" with {named}" if named else ""
    price = product.price
    bounds = [bound for bound in _PRICE_BOUNDS if bound > price][:4]
    limit = max(rng.sample(bounds, 2)) if len(bounds) >= 2 else None
    text += "" if limit is None else f", and price lower than {limit:.2f} dollars"
    return Goal(product, text, instruction.attributes, options, limit)
