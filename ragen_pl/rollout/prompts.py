"""The wording of the prompts: templates that are checked when they are given, and filled in."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.tools.env import ToolEnv
from ragen_pl.rollout.responses import ANSWER, SEPARATOR, Enclosure, actions_per_turn

THINK_FORMAT = "<think>...</think><answer>...</answer>"
ANSWER_FORMAT = "<answer>...</answer>"
_SYSTEM_FIELDS: Mapping[str, str | int] = {
    "instruction": "Win.",
    "actions": "left, right",
    "separator": SEPARATOR,
    "max_actions_per_turn": 2,
    "format": THINK_FORMAT,
}
"""The fields of the system template, with values such as they have."""
_TURN_FIELDS: Mapping[str, str | int] = {
    "turn": 1,
    "reward": "0.0",
    "actions_left": 10,
    "observation": "A lamp.",
}
"""The fields of the turn template, likewise."""


@dataclass(frozen=True)
class Prompts:
    """The wording of the prompts; curly braces name the fields that are filled in, and doubled ones
    stand for braces of the text.

    Args:
        think: Whether the agent thinks before it answers; false requests the answer alone.
        system: Template of the system message; may use {instruction}, {actions}, {separator},
            {max_actions_per_turn}, {format}.
        turn: Template of each turn's message; may use {turn}, {reward}, {actions_left},
            {observation}.
        response_format_think: Text of {format} if ``think`` is true.
        response_format_answer: Text of {format} if ``think`` is false.
        tools: Where the agent calls the tools of an environment that has some, and learns of them:
            in its answer and the system message (``answer``), or in the form that the model's chat
            template has for tools, with results as its messages for results (``template``).
    """

    think: bool = True
    system: str = (
        "{instruction}\n"
        "Actions: {actions}\n"
        "Answer with up to {max_actions_per_turn} actions a turn, separated by {separator}\n"
        "Format: {format}\n"
    )
    turn: str = "Reward: {reward}\nActions left: {actions_left}\nState:\n{observation}"
    response_format_think: str = THINK_FORMAT
    response_format_answer: str = ANSWER_FORMAT
    tools: Literal["answer", "template"] = "answer"

    def __post_init__(self) -> None:
        _check_template("prompts.system", self.system, _SYSTEM_FIELDS)
        _check_template("prompts.turn", self.turn, _TURN_FIELDS)
        if "observation" not in _fields_of(self.turn):
            raise ValueError("prompts.turn must contain {observation}: the agent would be blind")


def _check_template(key: str, template: str, fields: Mapping[str, str | int]) -> None:
    """Refuse a template that cannot be filled in, or does not say what it means.

    Args:
        key: The template's key, for messages.
        template: The template.
        fields: The fields that it may use, with values to fill in on trial.

    Raises:
        ValueError: with the key, what is wrong and what to do.
    """
    known = ", ".join(f"{{{field}}}" for field in fields)
    try:
        used = _fields_of(template)
    except ValueError as error:
        raise ValueError(
            f"{key} has a brace without its partner, at {_stray_brace(template)!r}: write {{{{ or "
            f"}}}} for a brace of the text, or close the field; fields are {known}"
        ) from error
    for name in used:
        if name not in fields:
            raise ValueError(
                f"{key} uses {{{name}}}; it may use only {known} (braces of the text are doubled)"
            )
    for name in _DOUBLED.findall(template):
        if name in fields:
            raise ValueError(
                f"{key} has {{{{{name}}}}}, which prints the name in braces and fills in nothing: "
                f"write {{{name}}}"
            )
    try:
        template.format(**fields)
    except (ValueError, KeyError, IndexError) as error:  # of a format after a colon
        raise ValueError(
            f"{key} has a field whose format, after the colon or exclamation mark, does not fit: "
            f"{template!r:.200} ({error}); name fields alone, such as {known}"
        ) from error


def _fields_of(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]


_DOUBLED = re.compile(r"(?<!\{)\{\{\s*(\w+)\s*\}\}(?!\})")
"""A name in doubled braces, which is no field."""
_WHOLE = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[^{}]+")
"""Braces with their partners, or the text between them."""
_CONTEXT = 20
"""Characters shown from a stray brace on."""


def _stray_brace(template: str) -> str:
    """Return a template from its first brace without a partner on."""
    at = 0
    while (match := _WHOLE.match(template, at)) is not None:
        at = match.end()
    return template[at : at + _CONTEXT]


def check_tools(prompts: Prompts, envs: dict[str, TextEnv]) -> None:
    """Refuse environments whose tools the model's template could not show and call.

    Args:
        prompts: The wording of the dialogue.
        envs: Environments by their keys below ``data``.

    Raises:
        ValueError: if there is one; the message names its key.
    """
    for key, env in envs.items() if prompts.tools == "template" else ():
        if not env.tools:
            raise ValueError(
                f"data.prompts.tools is template, but data.{key} is {type(env).__name__}, whose "
                "actions are not calls of tools: set data.prompts.tools to answer"
            )
        if isinstance(env, ToolEnv) and env.calls == "brackets":
            raise ValueError(
                f"data.prompts.tools is template, but calls of data.{key} is brackets, which is "
                "not the template's form: set calls to json, or data.prompts.tools to answer"
            )


def check_actions(envs: dict[str, TextEnv]) -> None:
    """Refuse action names that the answer format cannot hold.

    Args:
        envs: Environments by their keys below ``data``.

    Raises:
        ValueError: if there is one; the message names the key and the action.
    """
    for key, env in envs.items():
        for action in env.actions or ():
            if SEPARATOR in action or "<" in action or action != action.strip() or not action:
                raise ValueError(
                    f"data.{key}: {type(env).__name__} has an action named {action!r}; an action "
                    f"name must not be empty, contain {SEPARATOR!r} or '<', or begin or end "
                    "with a space, or answers cannot be read: rename it"
                )


def system_text(
    prompts: Prompts, env: TextEnv, max_actions_per_turn: int, enclosure: Enclosure = ANSWER
) -> str:
    """Fill in the system template with the environment's instruction and actions.

    Tools that the chat template shows are not listed again.
    """
    form = prompts.response_format_think if prompts.think else prompts.response_format_answer
    return prompts.system.format(
        instruction=env.instruction.strip(),
        actions="one call of a tool" if prompts.tools == "template" else env.actions_text,
        separator=SEPARATOR,
        max_actions_per_turn=actions_per_turn(env.actions, max_actions_per_turn),
        format=form.replace(ANSWER_FORMAT, f"{enclosure.opening}...{enclosure.closing}"),
    )


def common_vocabulary(prompts: Prompts, env: TextEnv, max_actions_per_turn: int) -> Iterable[str]:
    """List the pieces of text around an environment's observations.

    They are lines of the system message, the turn template's constant parts, numbers, tags and
    actions.
    """
    yield from system_text(prompts, env, max_actions_per_turn).splitlines(keepends=True)
    yield from (literal for literal, *_ in string.Formatter().parse(prompts.turn) if literal)
    yield from ("<think>", "</think><answer>", "<answer>", "</answer>")
    yield from (str(number) for number in range(100))
    yield from (f"{tenths / 10:.1f}" for tenths in range(-50, 120))
    for action in env.actions or ():
        yield from (action, f" {action}", f" {SEPARATOR} {action}")
