"""A catalogue of our own, in the files' form of the original, which may not be shipped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_ALPHABET = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
# fmt: off
_BRANDS = (
    "Alto", "Brisk", "Cova", "Dorn", "Evia", "Fenn", "Gild", "Hoko", "Ivra", "Junco", "Kest",
    "Lumo",
)
# fmt: on
_COLORS = ("black", "blue", "green", "red", "white")
_SIZES = ("small", "medium", "large", "x-large")
# The score takes values more than 85 % similar, as "pack of 1" and "pack of 2", for the same.
_PACKS = ("single", "two-pack", "six-pack")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of product."""

    noun: str
    category: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]


_COLOR, _SIZE, _PACK = ("color", _COLORS), ("size", _SIZES), ("number of items", _PACKS)
_KINDS = (
    _Kind(
        "running shoes",
        "Clothing › Shoes › Athletic",
        ("rubber sole", "lightweight", "breathable mesh", "arch support", "non slip"),
        (_COLOR, _SIZE),
    ),
    _Kind(
        "rain jacket",
        "Clothing › Outerwear › Jackets",
        ("waterproof", "machine washable", "with hood", "long sleeve", "quick drying"),
        (_COLOR, _SIZE),
    ),
    _Kind(
        "desk lamp",
        "Home › Lighting › Lamps",
        ("dimmable", "energy efficient", "wood base", "easy install", "glass shade"),
        (_COLOR,),
    ),
    _Kind(
        "bath towel",
        "Home › Bath › Towels",
        ("organic cotton", "super soft", "machine washable", "fade resistant", "extra thick"),
        (_COLOR, _PACK),
    ),
    _Kind(
        "water bottle",
        "Sports › Outdoors › Bottles",
        ("stainless steel", "leak proof", "bpa free", "double wall", "easy clean"),
        (_COLOR,),
    ),
    _Kind(
        "green tea",
        "Grocery › Beverages › Tea",
        ("caffeine free", "certified organic", "sugar free", "loose leaf", "non gmo"),
        (_PACK,),
    ),
    _Kind(
        "office chair",
        "Furniture › Office › Chairs",
        ("lumbar support", "easy assemble", "height adjustable", "faux leather", "heavy duty"),
        (),
    ),
    _Kind(
        "phone case",
        "Electronics › Phones › Cases",
        ("shock proof", "wireless charging", "scratch resistant", "slim fit", "dust proof"),
        (_COLOR,),
    ),
)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Generated products and instructions; equal ones are the same in every process.

    Args:
        size: Number of products.
    """

    size: int

    @property
    def items(self) -> tuple[dict[str, Any], ...]:
        """The objects of ``items_shuffle.json``."""
        return _items(self.size)

    @property
    def attributes(self) -> dict[str, dict[str, Any]]:
        """The object of ``items_ins_v2.json``."""
        return {each["asin"]: _known(each) for each in self.items}


@lru_cache(maxsize=8)
def _items(size: int) -> tuple[dict[str, Any], ...]:
    rng = random.Random("web shop catalogue")
    return tuple(_item(rng) for _ in range(size))


def _item(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(_KINDS)
    attributes = rng.sample(kind.attributes, rng.randint(2, 4))
    named = " ".join(attributes[:2])
    return {
        "asin": "B0" + "".join(rng.choices(_ALPHABET, k=8)),
        "name": f"{rng.choice(_BRANDS)} {named} {kind.noun}",
        "category": kind.category.partition(" ›")[0].lower(),
        "query": kind.noun,
        "product_category": kind.category,
        "full_description": f"A {kind.noun} that is {', '.join(attributes)}.",
        "small_description": [f"{each.capitalize()}." for each in attributes],
        "pricing": f"${rng.randint(5, 80)}.{rng.choice(('00', '49', '99'))}",
        "customization_options": {
            name: [{"value": value, "image": None} for value in values]
            for name, values in kind.options
        },
        "images": [""],
    }


def _known(item: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a product's attributes, and the instruction to buy it."""
    attributes = [each.removesuffix(".").lower() for each in item["small_description"]]
    rng = random.Random(f"instruction {item['asin']}")
    wished = rng.sample(attributes, rng.randint(1, min(3, len(attributes))))
    return {
        "attributes": attributes,
        "instruction": f"Find me {', '.join(wished)} {item['query']}",
        "instruction_attributes": wished,
    }


def pieces() -> Iterator[str]:
    """Iterate over the words of the catalogue."""
    yield from _BRANDS
    for kind in _KINDS:
        yield from (kind.noun, f" {kind.noun}")
        for each in kind.attributes:
            yield from (each, f" {each}", f"{each.capitalize()}.", f", {each}")
        for name, values in kind.options:
            yield from (name, f"{name}: ", *values, *(f" {value}" for value in values))
