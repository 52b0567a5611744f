"""YAML with a key twice, or with one that is no name, is an error with the line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ragen_pl.cli.config.checked_yaml import KeyFaultError, load_yaml
from ragen_pl.cli.config.files import FOLDER


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: 1\nb: 2\na: 3", 3, "the key a is there already, in line 1"),
        ("a: {b: 1,\n b: 1}", 2, "the key b is there already, in line 1"),
        ("- x: 1\n  x: 2", 2, "the key x is there already"),
        ('a: 1\n"a": 2', 2, "the key a is there already"),
        (
            "a:\n  8: 1",
            2,
            'the key 8 is read as a value (int), not as a name: put it in quotes, "8"',
        ),
        ("yes: 1", 1, "the key yes is read as a value (bool)"),
        ("off: 1", 1, "(bool)"),
        ("1.5: 1", 1, "(float)"),
        ("null: 1", 1, "(null)"),
    ],
)
def test_a_key_that_would_be_lost_or_misread_is_named(text: str, line: int, told: str) -> None:
    with pytest.raises(KeyFaultError) as caught:
        load_yaml(text)
    assert caught.value.line == line
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"line {line}: ")


@pytest.mark.parametrize(
    "text",
    [
        'a: 1\n"8": {a: 2}\n"yes": [{a: 3}, {a: 4}]',
        "a: &x {n: 1, m: 2}\nb: {<<: *x, n: 3}\nc: {<<: *x, m: 4}",
        "a: &x {n: 1}\nb: &y {<<: *x, n: 2}\nc: {<<: [*y, *x], n: 3}",
        "{instruction}",
        "",
        "3",
    ],
)
def test_other_yaml_is_read_as_it_is(text: str) -> None:
    assert load_yaml(text) == yaml.safe_load(text)


def test_a_mapping_may_hold_itself() -> None:
    tree = load_yaml("a: &x {b: *x, c: 1}")
    assert tree["a"]["b"] is tree["a"]


def test_broken_yaml_is_an_error_of_yaml() -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml("a: [")


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_name_every_key_once(path: Path) -> None:
    assert load_yaml(path.read_text(encoding="utf-8"))
