"""Answers that the parser can read."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.rollout.chat import Chat
from ragen_pl.runtime.findings import Finding, failure, ok, warning
from ragen_pl.runtime.visible_text import one_line
from ragen_pl.types import StopReason, Turn

_SHOWN = 3
_RARELY = 0.1
_ENOUGH = 16
"""Samples from which on none that is valid is a failure."""


def check_answers(subject: ExaminedRun) -> Iterator[Finding]:
    """Let the expert's texts and the policy's own responses go through the parser."""
    failed = [t for t in subject.expert_play if t.stop_reason is StopReason.ENV_ERROR]
    if failed:
        yield failure(
            f"{len(failed)} of the expert's {len(subject.expert_play)} trajectories cannot be "
            f"written in the answer format: {failed[0].error}",
            "leave the format's tags out of the expert's thoughts, and use the names in actions",
        )
        return
    chat = subject.chat
    for trajectory in subject.expert_play:
        for turn in trajectory.turns:
            text = chat.response_text(turn.thought, turn.actions)
            ids = chat.encode_response(text)
            if chat.decode(ids) != text:
                yield failure(
                    f"the tokenizer changes the text of responses: {one_line(text)!r} becomes "
                    f"{one_line(chat.decode(ids))!r}",
                    "use a tokenizer that keeps all characters, or other names of actions",
                )
                return
    turns = [t for group in subject.samples for each in group.trajectories for t in each.turns]
    valid = sum(turn.is_valid for turn in turns)
    text = f"{valid} of {len(turns)} sampled responses follow the format"
    if subject.data.warm_start.iterations:
        written = [turn for each in subject.expert_play for turn in each.turns]
        text += f", before the warm start; all {len(written)} of the expert's do"
        shown = written if not valid else turns  # before the warm start there may be noise alone
        yield ok(text, *_details(chat, shown))
        return
    details = _details(chat, turns)
    cut = sum(not turn.completion.stopped for turn in turns)
    if cut:
        text += f", {cut} were cut at data.rollout.max_response_tokens"
    remedy = (
        "raise data.rollout.max_response_tokens, name the format more plainly (data.prompts), use "
        "an instruction-tuned model, or begin with a warm start (data.warm_start.iterations)"
    )
    if not valid and len(turns) >= _ENOUGH:
        yield failure(f"{text}: there would be nothing to learn from", remedy, *details)
    elif valid < _RARELY * len(turns):
        yield warning(text, remedy, *details)
    else:
        yield ok(text, *details)


def _chosen(turns: list[Turn]) -> list[Turn]:
    """Choose turns to show, valid and invalid ones if there are both."""
    valid, invalid = ([t for t in turns if t.is_valid is wanted] for wanted in (True, False))
    return (valid[: _SHOWN - 1] + invalid)[:_SHOWN] if invalid else valid[:_SHOWN]


def _details(chat: Chat, turns: list[Turn]) -> list[str]:
    return [_shown(chat.opening_tag, turn) for turn in _chosen(turns)]


def _shown(opening: str, turn: Turn) -> str:
    actions = ", ".join(turn.actions) or "no action"
    state = "valid" if turn.format_fault is None else f"invalid: {turn.format_fault.told}"
    return f"{one_line(opening + turn.response, 160)}  →  {one_line(actions)} ({state})"
