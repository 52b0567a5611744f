"""Products and goals, read from files in the original's form."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ragen_pl.envs.data_files import DataRow, read_object, row_of
from ragen_pl.errors import ConfigError

_PRICE = re.compile(r"\$([\d,]*\.?\d+)")
_PLAIN_PRICE = re.compile(r"\d[\d,]*(?:\.\d+)?", re.ASCII)
_PRICE_BOUNDS = tuple(10.0 * step for step in range(1, 100))
"""Upper limits of prices that an instruction may set."""
_NO_PRICE = 100.0
LONGEST_ASIN = 10


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


def read_products(
    items: Iterable[DataRow], attributes: Mapping[str, DataRow]
) -> dict[str, Product]:
    """Return products by their numbers; as in the original, the first of equal numbers counts, and
    those without a number, or with a longer one than Amazon's, are left out.

    Args:
        items: The objects of ``items_shuffle.json``.
        attributes: Those of ``items_ins_v2.json``, by the products' numbers.

    Raises:
        ConfigError: if one lacks what a product must have.
    """
    found: dict[str, Product] = {}
    for item in items:
        asin = item.label("asin")
        if asin not in ("", "nan") and len(asin) <= LONGEST_ASIN and asin not in found:
            found[asin] = _product(asin, item, attributes.get(asin))
    return found


def _product(asin: str, item: DataRow, known: DataRow | None) -> Product:
    for name in ("name", "query", "product_category"):
        if not isinstance(item.get(name), str | int | float):
            raise item.unfit(name, "a text")
    points = item.get("small_description") or []
    return Product(
        asin=asin,
        name=item.label("name"),
        query=item.label("query").lower().strip(),
        category=item.label("product_category"),
        description=item.label("full_description"),
        bullet_points=(points,) if isinstance(points, str) else item.texts("small_description"),
        attributes=() if known is None else known.texts("attributes"),
        options=_options(item),
        pricing=_pricing(item),
    )


def _options(item: DataRow) -> dict[str, tuple[str, ...]]:
    """Return the different values by option; names that differ in case alone are one option."""
    given, wanted = item.get("customization_options") or {}, "an object of lists of values"
    if not isinstance(given, dict):
        raise item.unfit("customization_options", wanted)
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in given.items():
        if not contents:
            continue
        if not isinstance(contents, list):
            raise item.unfit("customization_options", wanted)
        values = [each.get("value") if isinstance(each, dict) else each for each in contents]
        if not all(isinstance(value, str | int | float) for value in values):
            raise item.unfit("customization_options", wanted)
        shown = (str(value).strip().replace("/", " | ").lower() for value in values)
        key = str(name).lower()
        options[key] = tuple(dict.fromkeys((*options.get(key, ()), *shown)))
    return options


def _pricing(item: DataRow) -> tuple[float, ...]:
    """Return the price, or the lowest and the highest; a number is one in dollars, too."""
    given = item.get("pricing") or ""
    if isinstance(given, str) and _PLAIN_PRICE.fullmatch(given.strip()):
        given = float(given.replace(",", ""))
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < math.inf:
        return (float(given),)
    if not isinstance(given, str):
        raise item.unfit("pricing", "a text such as $9.99, or a number of 0 or more")
    prices = tuple(float(price.replace(",", "")) for price in _PRICE.findall(given)[:2])
    return tuple(sorted(prices)) or (_NO_PRICE,)


def read_instructions(
    products: Mapping[str, Product], attributes: Mapping[str, DataRow]
) -> tuple[Instruction, ...]:
    """Return the instructions beside the attributes of products, in the products' order; those
    without attributes are left out, as in the original.

    Args:
        products: The products by their numbers.
        attributes: The objects of ``items_ins_v2.json``, by the products' numbers.
    """
    found = []
    for asin, product in products.items():
        row = attributes.get(asin)
        if row is not None and row.get("instruction"):
            wished = row.texts("instruction_attributes")
            if wished:
                found.append(Instruction(product, row.label("instruction"), wished))
    return tuple(found)


def read_human_instructions(products: Mapping[str, Product], path: str) -> tuple[Instruction, ...]:
    """Return the instructions of ``items_human_ins.json`` in place of those.

    Raises:
        ConfigError: if the file is in another form.
    """
    key, found = "human_instructions", []
    by_asin = read_object(path, key)
    for asin, product in products.items():
        given = by_asin.get(asin, [])
        if not isinstance(given, list):
            raise ConfigError(f"{key}: {path}, {asin}, must be a list of instructions")
        for number, each in enumerate(given, start=1):
            row = row_of(each, f"{key}: {path}, {asin}, instruction {number}", number)
            for name in ("instruction", "instruction_attributes"):
                if row.get(name) is None:
                    raise row.unfit(name, "as in items_human_ins.json")
            wished, options = row.texts("instruction_attributes"), row.texts("instruction_options")
            if wished:
                text = row.label("instruction").strip(".")
                found.append(Instruction(product, text, wished, options))
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
