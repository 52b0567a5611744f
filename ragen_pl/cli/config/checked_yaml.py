"""YAML whose mappings name every key once, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class KeyFaultError(ValueError):
    """A key that YAML would take without a word and lose, or read as something else than text.

    Args:
        line: The key's line, counted from 1.
        told: What is wrong, and what to do.
    """

    def __init__(self, line: int, told: str) -> None:
        super().__init__(f"line {line}: {told}")
        self.line, self.told = line, told


def load_yaml(text: str) -> Any:
    """Read YAML.

    Raises:
        YAMLError: when it is broken.
        KeyFaultError: when a key is there twice or is no text.
    """
    loader = yaml.SafeLoader(text)
    root = loader.get_single_node()
    _check(root)
    return None if root is None else loader.construct_document(root)


def check_keys(text: str) -> None:
    """Check the keys of all mappings in a YAML text.

    Raises:
        YAMLError, KeyFaultError: as ``load_yaml``.
    """
    _check(yaml.compose(text, Loader=yaml.SafeLoader))


def _check(root: Node | None) -> None:
    for mapping in _mappings(root, set()):
        lines: dict[str, int] = {}
        for key, _ in mapping.value:
            if not isinstance(key, ScalarNode) or key.tag == _MERGE:
                continue  # of a mapping that is merged in, a key may come again
            line = key.start_mark.line + 1
            if key.tag != _TEXT:
                kind = key.tag.rpartition(":")[2]
                raise KeyFaultError(
                    line,
                    f"the key {key.value} is read as a value ({kind}), not as a name: put it in "
                    f'quotes, "{key.value}"',
                )
            if key.value in lines:
                first = lines[key.value]
                raise KeyFaultError(
                    line,
                    f"the key {key.value} is there already, in line {first}: YAML would keep the "
                    "last one alone; join them",
                )
            lines[key.value] = line


def _mappings(node: Node | None, seen: set[int]) -> Iterator[MappingNode]:
    """Yield the mappings at and below a node once each, also where aliases repeat or nest them."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, MappingNode):
        yield node
        for pair in node.value:
            for each in pair:
                yield from _mappings(each, seen)
    elif isinstance(node, SequenceNode):
        for each in node.value:
            yield from _mappings(each, seen)
