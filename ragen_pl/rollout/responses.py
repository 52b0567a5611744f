"""What the agent answers: a thought and actions, parsed from its text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ragen_pl.types import FormatFault

SEPARATOR = "||"


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A parsed response."""

    thought: str
    actions: tuple[str, ...]
    fault: FormatFault | None
    """Why the response does not follow the format; None if every part of it does."""

    @property
    def is_valid(self) -> bool:
        return self.fault is None


@dataclass(frozen=True, slots=True)
class Enclosure:
    """The texts around the part of a response that is carried out."""

    opening: str
    closing: str

    def pattern(self, *, think: bool) -> re.Pattern[str]:
        """Return the pattern of the thought, if there is one, and of this part."""
        return _pattern(self.opening.strip(), self.closing.strip(), think)


ANSWER = Enclosure("<answer>", "</answer>")
CALL_ALONE = Enclosure("", "")
"""Nothing around a call, which an endpoint returns apart from the text."""


@lru_cache(maxsize=16)
def _pattern(opening: str, closing: str, think: bool) -> re.Pattern[str]:
    inner = f"(.*?){re.escape(closing)}" if closing else r"(.*)\Z"
    thought = r"<think>(.*?)</think>\s*" if think else ""
    return re.compile(thought + re.escape(opening) + inner, re.DOTALL)


def find_blocks(text: str, *, think: bool, enclosure: Enclosure = ANSWER) -> re.Match[str] | None:
    """Return what a search for the blocks finds, in linear time.

    If they do not follow the first opening tag, they follow no later one, and nothing after the
    last closing tag belongs to them. A plain search would try every opening tag up to the end of
    the text, which takes minutes for a long text of nothing but tags.
    """
    opening, closing = enclosure.opening.strip(), enclosure.closing.strip()
    start, end = text.find("<think>" if think else opening), text.rfind(closing)
    if start < 0 or end < 0:
        return None
    return enclosure.pattern(think=think).match(text, start, end + len(closing))


def parse_response(
    text: str,
    *,
    think: bool,
    known: tuple[str, ...] | None,
    max_actions: int,
    enclosure: Enclosure = ANSWER,
) -> ParsedResponse:
    """Parse a response, its forced opening tag included; any string is accepted.

    The first think block directly followed by an answer block counts (without thinking, the first
    answer block), and its answer is split at ``||``. Parts that name a known action, in any case,
    are executed in order, at most ``max_actions``; the others are left out. If actions are free
    text, the whole answer is one action. The turn is valid if there is nothing but white space
    before and after the blocks, every part names an action, and there are at most ``max_actions``.

    As in the paper's code, known actions are executed beside unknown ones, and an unknown one makes
    the turn invalid. The paper's code differs in four ways: it drops empty parts without a penalty;
    it cuts off surplus parts without a penalty and before names are looked up, so that an unknown
    one among the first counts toward the limit; it does not penalize text around the blocks; and it
    rebuilds the training text from the parsed response, whereas here it is the sampled tokens.

    Args:
        text: The response.
        think: Whether a think block is required.
        known: The environment's action names, or None if actions are free text.
        max_actions: Actions allowed in one turn.
        enclosure: What stands around the answer.
    """
    match = find_blocks(text, think=think, enclosure=enclosure)
    if match is None:
        return ParsedResponse(thought="", actions=(), fault=FormatFault.NO_ANSWER)
    thought, answer = (match[1].strip(), match[2]) if think else ("", match[1])
    whole = match.start() == 0 and text[match.end() :].strip() == ""
    outside = None if whole else FormatFault.OUTSIDE_TEXT
    if not answer.strip():
        return ParsedResponse(thought, (), FormatFault.NO_ANSWER)
    if known is None:
        return ParsedResponse(thought, (answer.strip(),), outside)
    names = {name.casefold(): name for name in known}
    parts = [part.strip().casefold() for part in answer.split(SEPARATOR)]
    found = tuple(names[part] for part in parts if part in names)
    fault = outside
    if len(found) < len(parts):
        fault = FormatFault.UNKNOWN_ACTION
    elif len(parts) > max_actions:
        fault = FormatFault.TOO_MANY_ACTIONS
    return ParsedResponse(thought, found[:max_actions], fault)


def actions_per_turn(known: tuple[str, ...] | None, most: int) -> int:
    """Return the maximum number of actions in a turn: a whole answer of free text is one action.

    Args:
        known: The environment's action names, or None if actions are free text.
        most: The limit where actions have names.
    """
    return 1 if known is None else most
