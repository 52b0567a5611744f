"""The pages of the shop, as lists of parts, and the two texts of them that the original has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ragen_pl.envs.web_shop.products import Product

Place = Literal["search", "results", "item", "description", "features", "reviews", "done"]
Kind = Literal["text", "button", "link", "option"]
BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUBPAGES: Mapping[str, Place] = {
    "Description": "description",
    "Features": "features",
    "Reviews": "reviews",
}
SEPARATOR = " [SEP] "


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page."""

    kind: Kind
    text: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """Where a customer is."""

    place: Place = "search"
    keywords: str = ""
    number: int = 1
    """Number of the page of results."""
    asin: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Values of options by their names."""
    seen: frozenset[str] = frozenset()
    """Products that were looked at."""


def parts_of(
    visit: Visit,
    task: str,
    results: Sequence[Product],
    product: Product | None,
    per_page: int,
) -> tuple[Part, ...]:
    """Return the parts of a page, in their order.

    Args:
        visit: Where the customer is.
        task: What is to be bought, in words.
        results: All results of the last search.
        product: The product that is looked at.
        per_page: Results on a page.
    """
    head = (Part("text", "Instruction:"), Part("text", task))
    if visit.place == "search":
        return (Part("text", "WebShop"), *head, Part("button", "Search"))
    if visit.place == "done":
        return (Part("text", "Thank you for shopping with us!"),)
    if product is None:
        return (*head, Part("button", BACK), *_results(visit, results, per_page))
    above = (*head, Part("button", BACK), Part("button", PREVIOUS))
    match visit.place:
        case "description":
            return (*above, Part("text", product.description or "No Description"))
        case "features":
            return (*above, *(Part("text", each) for each in product.bullet_points))
        case "reviews":
            return (*above, Part("text", "No Reviews"))
    return (*above, *_item(visit, product))


def _results(visit: Visit, results: Sequence[Product], per_page: int) -> Iterator[Part]:
    yield Part("text", f"Page {visit.number} (Total results: {len(results)})")
    if visit.number > 1:
        yield Part("button", PREVIOUS)
    if visit.number * per_page < len(results):
        yield Part("button", NEXT)
    for each in shown(results, visit.number, per_page):
        yield Part("link", each.asin, is_chosen=each.asin in visit.seen)
        yield from (Part("text", each.name), Part("text", each.price_tag))


def shown(results: Sequence[Product], number: int, per_page: int) -> Sequence[Product]:
    """Return the results on a page, which are counted from 1."""
    return results[(number - 1) * per_page : number * per_page]


def _item(visit: Visit, product: Product) -> Iterator[Part]:
    for name, values in product.options.items():
        yield Part("text", name)
        for value in values:
            yield Part("option", value, is_chosen=visit.chosen.get(name) == value)
    yield Part("text", product.name)
    yield Part("text", f"Price: {product.price_tag}")
    yield Part("text", "Rating: N.A.")
    yield from (Part("button", name) for name in (*SUBPAGES, BUY))


def plain_text(parts: Sequence[Part]) -> str:
    """Return the original's ``text``: everything in one line."""
    return SEPARATOR.join(part.text for part in parts)


def rich_text(parts: Sequence[Part]) -> str:
    """Return the original's ``text_rich``: a line for each part, with buttons marked."""
    return "\n".join(map(_line, parts))


def _line(part: Part) -> str:
    if part.kind == "text":
        return part.text
    return (
        f"[clicked button] {part.text} [clicked button_]"
        if part.is_chosen
        else (f"[button] {part.text} [button_]")
    )
