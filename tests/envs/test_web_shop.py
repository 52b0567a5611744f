"""WebShop: pages, actions, the original's files, and its score by hand."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.data_files import DataRow
from ragen_pl.envs.web_shop.catalogue import Catalogue
from ragen_pl.envs.web_shop.env import WebShop
from ragen_pl.envs.web_shop.products import (
    Goal,
    Product,
    goal_of,
    read_human_instructions,
    read_instructions,
    read_products,
)
from ragen_pl.envs.web_shop.reward import num_options, score, similarity, type_factor

ITEMS: list[dict[str, Any]] = [
    {
        "asin": "B000TEA001",
        "name": "Plain Hill Green Tea Bags",
        "category": "grocery",
        "query": "Green Tea ",
        "product_category": "Grocery › Beverages › Tea",
        "full_description": "Leaves from one hill. Caffeine free.",
        "small_description": ["Certified organic.", "Sugar free."],
        "pricing": "$12.50",
        "customization_options": {
            "Size": [
                {"value": "20 Count ", "image": None},
                {"value": "40/80 count", "image": None},
            ],
            "Flavor Name": [{"value": "Mint", "image": "x.jpg"}],
            "Color": None,
        },
        "images": ["x.jpg"],
        "brand": "dropped",
    },
    {
        "asin": "B000LAMP01",
        "name": "Bright Desk Lamp",
        "category": "home",
        "query": "desk lamp",
        "product_category": "Home › Lighting › Lamps",
        "full_description": None,
        "small_description": "Dimmable.",
        "pricing": "$1,010.00$1,250.00",
        "customization_options": "",
        "images": [""],
    },
    {
        "asin": "B000CAN001",
        "name": "Green Tea Tin",
        "category": "grocery",
        "query": "tea tin",
        "product_category": "Grocery › Beverages › Storage",
        "full_description": "A tin.",
        "small_description": [],
        "pricing": "",
        "customization_options": None,
        "images": [""],
    },
    {"asin": "B000TEA001", "name": "The same number again"},
    {"asin": "nan"},
    {"asin": "B000TOOLONG"},
]
KNOWN: dict[str, dict[str, Any]] = {
    "B000TEA001": {
        "attributes": ["certified organic", "caffeine free", "sugar free"],
        "instruction": "Find me certified organic, caffeine free green tea",
        "instruction_attributes": ["certified organic", "caffeine free"],
    },
    "B000LAMP01": {
        "attributes": ["dimmable"],
        "instruction": "Find me dimmable desk lamp",
        "instruction_attributes": ["dimmable"],
    },
    "B000CAN001": {"attributes": ["airtight"], "instruction": None, "instruction_attributes": []},
}
HUMAN = {
    "B000TEA001": [
        {
            "instruction": "i want organic tea in a box of 20.",
            "instruction_attributes": ["certified organic"],
            "instruction_options": ["20 count"],
            "worker_id": "W",
        },
        {"instruction": "skipped", "instruction_attributes": [], "instruction_options": []},
    ]
}
ROWS = [DataRow("items", number, item) for number, item in enumerate(ITEMS)]
KNOWN_ROWS = {asin: DataRow("attributes", 0, known) for asin, known in KNOWN.items()}
PRODUCTS = read_products(ROWS, KNOWN_ROWS)
TEA, LAMP, TIN = (PRODUCTS[asin] for asin in ("B000TEA001", "B000LAMP01", "B000CAN001"))
GOAL = Goal(TEA, "", ("certified organic", "caffeine free"), ("20 count", "mint"), 20.0)
RIGHT = {"size": "20 count", "flavor name": "mint"}


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> dict[str, str]:
    paths = {}
    for name, content in (("items", ITEMS), ("attributes", KNOWN), ("human", HUMAN)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        paths[name] = str(path)
    return paths


def test_the_original_s_fields_are_read_as_it_reads_them() -> None:
    assert list(PRODUCTS) == ["B000TEA001", "B000LAMP01", "B000CAN001"]
    assert TEA.query == "green tea"
    assert TEA.options == {"size": ("20 count", "40 | 80 count"), "flavor name": ("mint",)}
    assert (TEA.pricing, TEA.price_tag, TEA.price) == ((12.5,), "$12.5", 12.5)
    assert LAMP.price_tag == "$1010.0 to $1250.0"
    assert 1010 <= LAMP.price <= 1250
    assert LAMP.bullet_points == ("Dimmable.",)
    assert (TIN.pricing, TIN.options) == ((100.0,), {})


def test_an_instruction_becomes_goals_with_options_and_a_price(files: dict[str, str]) -> None:
    tea, lamp = read_instructions(PRODUCTS, KNOWN_ROWS)
    goals = [goal_of(tea, random.Random(seed)) for seed in range(60)]
    assert {goal.options for goal in goals} == {("mint", "20 count"), ("mint", "40 | 80 count")}
    assert {goal.price_limit for goal in goals} == {30.0, 40.0, 50.0}
    assert goals[0].text == (
        "Find me certified organic, caffeine free green tea with flavor name: mint, and size: "
        f"{goals[0].options[1]}, and price lower than {goals[0].price_limit:.2f} dollars"
    )
    dear = goal_of(lamp, random.Random(0))
    assert (dear.price_limit, dear.text) == (None, "Find me dimmable desk lamp")
    (human,) = read_human_instructions(PRODUCTS, files["human"])
    goal = goal_of(human, random.Random(0))
    assert (goal.options, goal.attributes) == (("20 count",), ("certified organic",))
    assert goal.text.startswith("i want organic tea in a box of 20, and price lower than ")


@pytest.mark.parametrize(
    ("product", "chosen", "met"),
    [
        (TEA, RIGHT, 5),
        (TEA, {"size": "20 count"}, 4),
        (TEA, {**RIGHT, "size": "40 | 80 count"}, 4),
        (TEA, {}, 3),
    ],
)
def test_the_score_counts_what_is_met(product: Product, chosen: dict[str, str], met: int) -> None:
    assert score(product, GOAL, chosen) == pytest.approx(met / 5)


def test_the_score_of_other_products() -> None:
    assert type_factor(TEA, GOAL) == 1.0
    assert score(LAMP, GOAL, {}) == type_factor(LAMP, GOAL) == 0.0
    # Common words green and tea of five, two common categories; too dear, and nothing else is met.
    assert type_factor(TIN, GOAL) == 1.0
    assert score(TIN, GOAL, {}) == 0.0
    cheap = Goal(TEA, "", GOAL.attributes, GOAL.options, None)
    assert score(TIN, cheap, {}) == pytest.approx(1 / 5)


def named(name: str, query: str = "q", category: str = "a") -> Product:
    return Product("B", name, query, category, "", (), (), {}, (1.0,))


@pytest.mark.parametrize(
    ("bought", "factor"),
    [
        (named("alpha beta gamma delta epsilon"), 1.0),
        (named("alpha beta", "other"), 1.0),  # 0.4 of the words
        (named("alpha", "other"), 0.5),  # exactly 0.2, which is not enough
        (named("alpha", "q"), 1.0),
        (named("zeta", "q"), 0.0),
    ],
)
def test_the_factor_of_the_type(bought: Product, factor: float) -> None:
    goal = Goal(named("Alpha beta, gamma (delta) 5 Epsilon"), "", ("x",), (), None)
    assert type_factor(bought, goal) == factor


def wishing(*options: str) -> Goal:
    return Goal(TEA, "", ("x",), options, None)


@pytest.mark.parametrize(
    ("wished", "chosen", "met"),
    [
        (("dark navy blue", "x-large"), {"color": "blue", "size": "x-large"}, 2),
        (("dark navy blue", "x-large"), {"color": "red", "size": "x large"}, 0),
        (("x-large",), {"size": "large"}, 0),  # although one's words are among the other's
        (("x-large",), {"fit": "large"}, 1),
        ((), {"color": "blue"}, 0),
        (("red",), {"flavor name": "green tea"}, 0),  # in the product's name, but no wish
        (("red", "20 count"), {"color": "red", "trim": "red"}, 1),  # one wish, met twice
        (("red", "20 count"), {"trim": "blue", "color": "red", "size": "20 count"}, 2),
    ],
)
def test_each_wish_counts_once_if_a_chosen_option_meets_it(
    wished: tuple[str, ...], chosen: dict[str, str], met: int
) -> None:
    assert num_options(wishing(*wished), chosen) == met


def test_an_option_that_the_title_names_earns_nothing() -> None:
    black = Product("B", "Black case", "case", "a", "", (), ("x",), {}, (1.0,))
    goal = Goal(black, "", ("x",), ("white",), None)
    assert score(black, goal, {"color": "white"}) == 1.0
    assert score(black, goal, {"color": "black"}) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        ("certified organic", "organic certified", 100.0),
        ("organic", "certified organic", 100.0),
        ("essential oil", "essential oils", 96.296),
        ("fuzzy was a bear", "fuzzy fuzzy was a bear", 100.0),
        ("rubber sole", "leather upper", 33.333),
        ("abc", "xyz", 0.0),
        ("", "abc", 0.0),
        ("Easy-Clean!", "easy clean", 100.0),
    ],
)
def test_similarity_is_rapidfuzz_s(one: str, other: str, ratio: float) -> None:
    assert similarity(one, other) == pytest.approx(ratio, abs=1e-3)
    assert similarity(other, one) == pytest.approx(ratio, abs=1e-3)


def longest_common(one: str, other: str) -> int:
    rows = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for (i, a), (j, b) in itertools.product(enumerate(one), enumerate(other)):
        rows[i + 1][j + 1] = rows[i][j] + 1 if a == b else max(rows[i][j + 1], rows[i + 1][j])
    return rows[-1][-1]


@given(st.text("abc", min_size=1, max_size=9), st.text("abc", min_size=1, max_size=9))
def test_one_word_is_compared_by_its_longest_common_subsequence(one: str, other: str) -> None:
    wanted = 200.0 * longest_common(one, other) / (len(one) + len(other))
    assert similarity(one, other) == pytest.approx(wanted)


def begun(**arguments: Any) -> WebShop:
    env = WebShop(**arguments)
    env.reset(seed=0)
    return env


def bought_by_expert(env: WebShop, seed: int) -> tuple[int, float, bool]:
    env.reset(seed=seed)
    for number in itertools.count(1):
        _, (action,) = env.expert_turn(random.Random(0), 1)
        _, reward, terminated, truncated, info = env.step(action)
        assert info["valid"], action
        if terminated or truncated:
            return number, reward, info["success"]
    raise AssertionError


@pytest.mark.parametrize("observation", ["text", "text_rich"])
def test_the_original_s_files_drop_in(files: dict[str, str], observation: Any) -> None:
    env = WebShop(files["items"], files["attributes"], split="all", observation=observation)
    check_contract(env, "env")
    ends = [bought_by_expert(env, seed) for seed in range(12)]
    assert {end[1:] for end in ends} == {(1.0, True)}
    human = WebShop(files["items"], files["attributes"], files["human"], split="all")
    assert bought_by_expert(human, 0) == (4, 1.0, True)


def test_a_walk_through_the_pages(files: dict[str, str]) -> None:
    env = WebShop(
        *(files["items"], files["attributes"]), split="all", results_per_page=1, max_actions=30
    )
    seed = next(s for s in range(99) if "green tea" in env.reset(seed=s)[0])
    start, _ = env.reset(seed=seed)
    task = start.splitlines()[2]
    assert start == f"WebShop\nInstruction:\n{task}\n[button] Search [button_]"
    results, *_ = env.step("search[Green Tea Bags]")
    assert results.splitlines() == [
        *("Instruction:", task, "[button] Back to Search [button_]", "Page 1 (Total results: 2)"),
        *("[button] Next > [button_]", "[button] B000TEA001 [button_]"),
        *("Plain Hill Green Tea Bags", "$12.5"),
    ]
    second, *_ = env.step("click[next >]")
    assert "Page 2 (Total results: 2)\n[button] < Prev [button_]\n[button] B000CAN001" in second
    assert env.step("click[< Prev]")[0] == results
    item, *_ = env.step("click[b000tea001]")
    assert item.splitlines()[4:] == [
        *("size", "[button] 20 count [button_]", "[button] 40 | 80 count [button_]"),
        *("flavor name", "[button] mint [button_]", "Plain Hill Green Tea Bags", "Price: $12.5"),
        *("Rating: N.A.", "[button] Description [button_]", "[button] Features [button_]"),
        *("[button] Reviews [button_]", "[button] Buy Now [button_]"),
    ]
    assert "[clicked button] mint [clicked button_]" in env.step("click[mint]")[0]
    features, *_ = env.step("click[Features]")
    assert features.splitlines()[4:] == ["Certified organic.", "Sugar free."]
    assert "[clicked button] mint" in env.step("click[< Prev]")[0]
    assert "Caffeine free." in env.step("click[description]")[0]
    env.step("click[< Prev]")
    assert "[clicked button] B000TEA001 [clicked button_]" in env.step("click[< Prev]")[0]
    assert env.step("click[Back to Search]")[0] == start


@pytest.mark.parametrize(
    "action",
    [
        *("", "buy", "search[]", "search", "click[]", "click[Buy Now]", "click[Search]x"),
        *("click[search", "search[x]y", "[" * 9000, "click[" * 3000 + "]", "click[B000TEA001]"),
    ],
)
def test_what_is_no_action_of_the_page_changes_nothing(action: str) -> None:
    env = begun()
    before = env.render_text()
    text, reward, terminated, truncated, info = env.step(action)
    assert (text, reward, terminated, truncated) == (before, 0.0, False, False)
    assert not info["valid"]


def test_hostile_searches_are_answered() -> None:
    env = begun(max_actions=99)
    for words in ('"*^:() AND OR NOT', "\x00\u202e漢字", "a " * 5000, "'; drop table found; --"):
        text, *_, info = env.step(f"search[{words}]")
        assert "Total results: " in text
        assert info["valid"]


def test_a_partial_purchase_earns_its_score_or_nothing() -> None:
    scores = []
    for kind in ("full", "score"):
        env = WebShop(reward=kind, fewest_wishes=4)  # type: ignore[arg-type]
        env.reset(seed=1)
        for _ in range(15):
            _, (action,) = env.expert_turn(random.Random(0), 1)
            env.step(action)
            if "Buy Now" in env.render_text():  # before any option is chosen
                break
        _, reward, terminated, _, info = env.step("click[Buy Now]")
        assert terminated
        assert not info["success"]
        assert 0 < info["score"] < 1
        scores.append((reward, info["score"]))
    (nothing, same), (earned, again) = scores
    assert (nothing, earned) == (0.0, same)
    assert same == again


def test_a_value_of_two_options_counts_for_the_last(tmp_path: Path) -> None:
    item = {
        **ITEMS[0],
        "customization_options": {"Color": [{"value": "red"}], "Trim": [{"value": "Red"}]},
    }
    for name, content in (("items", [item]), ("known", KNOWN)):
        (tmp_path / name).write_text(json.dumps(content))
    env = WebShop(str(tmp_path / "items"), str(tmp_path / "known"), split="all")
    env.reset(seed=0)
    for action in ("search[tea]", "click[B000TEA001]", "click[RED]"):
        env.step(action)
    assert env._visit.chosen == {"trim": "red"}


@pytest.mark.parametrize("size", [60, 400])
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_expert_buys_what_is_wanted(size: int, split: Any) -> None:
    env = WebShop(products=size, split=split, results_per_page=5)
    ends = [bought_by_expert(env, seed) for seed in range(40)]
    assert all(success for *_, success in ends)
    assert max(number for number, *_ in ends) < 15


def test_the_score_tells_apart_all_values_of_the_own_catalogue_s_options() -> None:
    options = {
        (name, tuple(value["value"] for value in values))
        for item in Catalogue(200).items
        for name, values in item["customization_options"].items()
    }
    assert {name for name, _ in options} == {"color", "size", "number of items"}
    for name, values in options:
        for one, other in itertools.combinations(values, 2):
            assert num_options(wishing(one), {name: other}) == 0, (one, other)
            # As sizes, which are compared exactly, "large" and "x-large" may be similar.
            assert name == "size" or similarity(one, other) <= 85, (one, other)
        if name != "size":
            assert all(similarity(value, name) <= 85 for value in values)


def test_a_purchase_with_a_wrong_option_is_no_success() -> None:
    env, tried = WebShop(split="eval"), set()
    for seed in range(60):
        env.reset(seed=seed)
        goal = env._goal
        for name, values in goal.product.options.items():
            for wrong in set(values).difference(goal.options):
                env.reset(seed=seed)
                while (action := env.expert_turn(random.Random(0), 1)[1][0]) != "click[Buy Now]":
                    env.step(action)
                env.step(f"click[{wrong}]")
                _, reward, terminated, _, info = env.step("click[Buy Now]")
                wished = goal.num_wishes + 1
                assert terminated
                assert (reward, info["success"]) == (0.0, False), (goal.text, wrong)
                assert info["score"] == pytest.approx((wished - 1) / wished)
                tried.add((name, wrong))
    assert len(tried) == 5 + 4 + 3  # every color, size and number of items


def test_splits_want_disjoint_products_and_wishes_are_counted() -> None:
    wanted: dict[str, set[str]] = {}
    for split in ("train", "eval"):
        env = WebShop(fewest_wishes=2, most_wishes=3, split=split)  # type: ignore[arg-type]
        seen = set()
        for seed in range(120):
            _, info = env.reset(seed=seed)
            assert info["difficulty"] == str(env._goal.num_wishes)
            assert info["difficulty"] in ("2", "3")
            seen.add(env._goal.product.asin)
        wanted[split] = seen
    assert not wanted["train"] & wanted["eval"]
    assert min(map(len, wanted.values())) > 10


def test_other_arguments_are_refused(files: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("[1]")
    nobody = tmp_path / "nobody.json"
    nobody.write_text('{"B9": {}}')
    broken = tmp_path / "broken.json"
    broken.write_text('[{"asin": "B1", "name": "x"}]')
    for arguments, message in (
        ({"items": files["items"]}, "belong together"),
        ({"human_instructions": "x"}, "human_instructions: x needs items"),
        ({"products": 3}, "products: 3 is less than 10"),
        ({"fewest_wishes": 9}, "leave none of 200 instructions"),
        ({"fewest_wishes": 3, "most_wishes": 2}, "is not between 1 and most_wishes"),
        ({"max_actions": 0}, "max_actions: 0 is not positive"),
        ({"observation": "html"}, "observation: 'html' is unknown"),
        ({"items": "/nowhere", "attributes": files["attributes"]}, "items: /nowhere cannot be"),
        ({"items": str(other), "attributes": files["attributes"]}, "entry 1, is no object"),
        (
            {"items": str(broken), "attributes": files["attributes"]},
            'entry 1, has no "query"',
        ),
        (
            {"items": files["items"], "attributes": str(nobody)},
            "no instruction is for one of the 3 products",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            WebShop(**arguments)  # type: ignore[arg-type]


def opened(tmp_path: Path, item: dict[str, Any], known: Any, human: Any = None) -> WebShop:
    """Open a shop of one product whose fields differ from the original's form."""
    paths: dict[str, str] = {}
    for name, content in (
        ("items", [{**ITEMS[0], **item}]),
        ("attributes", {"B000TEA001": known}),
        ("human_instructions", human),
    ):
        if content is not None:
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(content), encoding="utf-8")
            paths[name] = str(path)
    return WebShop(**paths, split="all")  # type: ignore[arg-type]


WISH = {"attributes": ["organic"], "instruction": "Find", "instruction_attributes": ["organic"]}


def test_plain_prices_and_options_of_ones_own_are_read(tmp_path: Path) -> None:
    for pricing, wanted in ((19.99, 19.99), (5, 5.0), ("1,250.5", 1250.5), ("", 100.0)):
        folder = tmp_path / f"price {pricing}"
        folder.mkdir()
        env = opened(folder, {"pricing": pricing}, WISH)
        assert env._goal.product.pricing == (wanted,)
    options = {"Color": ["Red", "Blue", "red"], "color": [{"value": "Green"}]}
    product = opened(tmp_path, {"customization_options": options}, WISH)._goal.product
    assert product.options == {"color": ("red", "blue", "green")}


@pytest.mark.parametrize(
    ("item", "known", "human", "message"),
    [
        ({}, {**WISH, "attributes": "organic"}, None, 'B000TEA001: "attributes" is "organic"'),
        (
            {},
            {**WISH, "instruction_attributes": "organic"},
            None,
            'B000TEA001: "instruction_attributes" is "organic"; it must be a list of texts',
        ),
        ({}, ["organic"], None, "B000TEA001, is no object"),
        ({"asin": "LONGER-THAN-TEN"}, WISH, None, 'no product with an "asin" of at most 10'),
        ({"pricing": [1, 2]}, WISH, None, r'entry 1: "pricing" is \[1, 2\]'),
        ({"pricing": -3}, WISH, None, '"pricing" is -3'),
        ({"pricing": True}, WISH, None, '"pricing" is true'),
        ({"name": ["Tea"]}, WISH, None, 'entry 1: "name" is'),
        ({"small_description": {"a": 1}}, WISH, None, '"small_description" is'),
        (
            {"customization_options": {"Color": "red"}},
            WISH,
            None,
            'entry 1: "customization_options" is .*"red".* lists of values',
        ),
        ({"customization_options": ["red"]}, WISH, None, '"customization_options" is'),
        ({}, WISH, [WISH], "holds a list; it must be one JSON object"),
        ({}, WISH, {}, "human_instructions: no instruction"),
        ({}, WISH, {"B000TEA001": WISH}, "B000TEA001, must be a list of instructions"),
        (
            {},
            WISH,
            {"B000TEA001": [{"instruction": "x"}]},
            'B000TEA001, instruction 1, has no "instruction_attributes"',
        ),
        (
            {},
            WISH,
            {"B000TEA001": [{**WISH, "instruction_options": {"color": "red"}}]},
            'instruction 1: "instruction_options" is {"color": "red"}; it must be a list of texts',
        ),
    ],
)
def test_fields_of_another_form_are_named(
    tmp_path: Path, item: dict[str, Any], known: Any, human: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, item, known, human)
