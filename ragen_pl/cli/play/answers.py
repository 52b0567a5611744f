"""What a person types in place of the agent's response: the full format, or the actions alone."""

from __future__ import annotations

import re

from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.responses import SEPARATOR


class UnreadableError(ValueError):
    """An answer without a meaning; the message says what to type."""


def response_of(line: str, chat: Chat, known: tuple[str, ...] | None) -> str:
    """Return the response that a line means, without the forced opening tag.

    A line with a tag of the format is taken as it is, like the agent's. Otherwise it lists the
    actions: whole names in any case, or unambiguous beginnings, separated by spaces, commas or
    ``||``. If actions are free text, the whole line is one action.

    Raises:
        UnreadableError: when a word names no action.
    """
    if re.search(r"</?(?:think|answer)>", line):
        return line.removeprefix(chat.opening_tag)
    if known is None:
        return chat.response_text("", [line])
    return chat.response_text("", _actions(line, known))


def _actions(line: str, known: tuple[str, ...]) -> list[str]:
    names = {name.casefold(): name for name in known}
    rest = re.sub(r"\s*(?:,|" + re.escape(SEPARATOR) + r")\s*", " ", line).strip().casefold()
    actions = []
    while rest:
        # Names may contain spaces, such as a bandit's arms: the longest one counts.
        whole = [name for name in names if re.match(re.escape(name) + r"(?!\S)", rest)]
        if whole:
            name = max(whole, key=len)
            actions.append(names[name])
            rest = rest[len(name) :].strip()
            continue
        word, _, rest = rest.partition(" ")
        begun = [name for name in names if name.startswith(word)]
        if len(begun) != 1:
            what = "may be several of" if begun else "is not among"
            raise UnreadableError(f"{word!r} {what} the actions: {', '.join(known)} (/help)")
        actions.append(names[begun[0]])
        rest = rest.strip()
    return actions
