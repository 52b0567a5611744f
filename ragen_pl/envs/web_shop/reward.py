"""The score of a purchase, WebShop's own formula (Yao et al. 2022, arXiv 2207.01206)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from ragen_pl.envs.web_shop.products import Goal, Product

_SIMILAR = 85
"""Similarity, in percent, above which two attributes or options are the same."""
_WORD = re.compile(r"[^\W\d_]+")
# fmt: off
_NO_NOUNS = (
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "in", "into", "is", "it",
    "its", "of", "on", "or", "our", "per", "set", "that", "the", "these", "this", "to", "up",
    "with", "without", "your", "you", "pack", "size", "color", "style",
)
_COLORS = (
    "beige", "black", "blue", "bronze", "brown", "burgundy", "coral", "cream", "cyan", "gold",
    "gray", "green", "grey", "indigo", "ivory", "khaki", "lavender", "magenta", "maroon", "mint",
    "navy", "olive", "orange", "peach", "pink", "purple", "red", "rose", "silver", "tan", "teal",
    "turquoise", "violet", "white", "yellow",
)
# fmt: on


def score(product: Product, goal: Goal, chosen: Mapping[str, str]) -> float:
    """Return the score of a purchase in [0, 1].

    It is the share of the goal's attributes, options and price limit that are met, times a factor
    for the type of product.

    Args:
        product: What is bought.
        goal: What was wished for.
        chosen: Values of options by their names.
    """
    cheap = goal.price_limit is None or product.price <= goal.price_limit
    met = num_attributes(product, goal) + num_options(goal, chosen) + cheap
    return type_factor(product, goal) * met / (goal.num_wishes + 1)


def type_factor(product: Product, goal: Goal) -> float:
    """Return the factor for the type of product: 1 for the same search term, two common categories
    or enough common words of the names; 0.5, 0.1 or 0 otherwise.

    The original compares nouns, found by spaCy; here it is all words but a few small ones.
    """
    wished, bought = (_names(each.name) for each in (goal.product, product))
    common = len(wished & bought) / len(wished) if wished else 0.2
    if common == 0:
        return 0.0
    if common < 0.1:
        return 0.1
    same_query = product.query == goal.product.query
    categories = _categories(product) & _categories(goal.product)
    return 1.0 if same_query or len(categories) >= 2 or common > 0.2 else 0.5


def _names(name: str) -> set[str]:
    return set(_WORD.findall(name.lower())).difference(_NO_NOUNS)


def _categories(product: Product) -> set[str]:
    return {each.strip() for each in product.category.split("›") if each.strip()}


def num_attributes(product: Product, goal: Goal) -> int:
    """Return how many of the goal's attributes a product has, or names anywhere."""
    return sum(
        any(similarity(own, wished) > _SIMILAR for own in product.attributes)
        or _names_anywhere(product, wished)
        for wished in goal.attributes
    )


def num_options(goal: Goal, chosen: Mapping[str, str]) -> int:
    """Return how many of the goal's options are chosen; what nobody wished for earns nothing.

    A size must be equal; other values may be similar, and of colors the first name counts.
    """
    values = [(name.lower() == "size", _color(value)) for name, value in chosen.items()]
    return sum(
        any(
            value == wished if is_size else similarity(wished, value) > _SIMILAR
            for is_size, value in values
        )
        for wished in map(_color, goal.options)
    )


def _names_anywhere(product: Product, text: str) -> bool:
    places = (product.name, " ".join(product.bullet_points), product.description)
    return any(text in place.lower() for place in places)


def _color(value: str) -> str:
    """Return the color that a value names, the first of the list; the value itself if there is
    none."""
    return next((color for color in _COLORS if color in value), value)


@lru_cache(maxsize=100_000)
def similarity(one: str, other: str) -> float:
    """Return the ratio of two sets of words in percent, as rapidfuzz's ``token_set_ratio``."""
    first, second = _words(one), _words(other)
    if not first or not second:
        return 0.0
    common = " ".join(sorted(first & second))
    rests = [" ".join(sorted(each)) for each in (first - second, second - first)]
    if common and not all(rests):
        return 100.0
    longer = [f"{common} {rest}".strip() for rest in rests]
    pairs: Iterable[tuple[str, str]] = [(longer[0], longer[1])]
    if common:
        pairs = [*pairs, (common, longer[0]), (common, longer[1])]
    return max(_ratio(*pair) for pair in pairs)


def _words(text: str) -> set[str]:
    return set(re.sub(r"\W|_", " ", text.lower()).split())


def _ratio(one: str, other: str) -> float:
    """Return twice the length of the longest common subsequence by both lengths, in percent."""
    return 200.0 * _common(one, other) / (len(one) + len(other))


def _common(one: str, other: str) -> int:
    """Return the length of the longest common subsequence (Hyyrö's bits)."""
    places: dict[str, int] = {}
    for place, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << place
    every = (1 << len(one)) - 1
    row = every
    for character in other:
        matched = row & places.get(character, 0)
        row = ((row + matched) | (row - matched)) & every
    return len(one) - row.bit_count()
