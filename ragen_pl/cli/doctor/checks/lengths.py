"""The budgets of tokens: of a response, and of a context."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.runtime.findings import Finding, failure, ok, warning
from ragen_pl.types import StopReason, TokenSequence, Trajectory

_FEW, _MANY = 0.1, 0.5
"""Shares of trajectories from which on cuts are a warning and a failure."""


def check_lengths(subject: ExaminedRun) -> Iterator[Finding]:
    """Measure prompts and the expert's responses against the budgets, and how many trajectories
    are cut."""
    rollout, written = subject.data.rollout, subject.written
    whole = [*subject.expert_play, *written.all]
    whole = [each for each in whole if each.is_trainable]
    if not whole:
        yield failure("no trajectory could be played", "mend the environment (see above)")
        return
    first = max(len(each.turns[0].prompt_ids) for each in whole)
    least = first + rollout.max_response_tokens
    if least > rollout.max_context:
        yield failure(
            f"the first prompt takes {first} tokens and a response up to "
            f"{rollout.max_response_tokens}, but data.rollout.max_context is {rollout.max_context}",
            f"set data.rollout.max_context to {_longest(whole, subject)} or more",
        )
        return
    longest = _longest_response(subject)
    if longest is not None and longest > rollout.max_response_tokens:
        yield failure(
            f"the expert's longest response takes {longest} tokens, but "
            f"data.rollout.max_response_tokens is {rollout.max_response_tokens}",
            f"set data.rollout.max_response_tokens to about {longest * 3 // 2}",
        )
        return
    if rollout.memory.summary_request is not None:
        yield _check_summaries(whole, subject)
        return
    worst = _longest(whole, subject)
    share = sum(_is_cut(each, subject, longest) for each in whole) / len(whole)
    sampled = [each for group in subject.samples for each in group.trajectories]
    full = sum(each.stop_reason is StopReason.CONTEXT_FULL for each in sampled)
    unit = "a training sequence" if rollout.memory.cuts else "whole trajectory"
    budget = f"first prompt {first} tokens, {unit} up to {worst}"
    if longest is not None:
        budget += f", the expert's longest response {longest} of {rollout.max_response_tokens}"
    if share > _FEW:
        level = failure if share > _MANY else warning
        yield level(
            f"{share:.0%} of trajectories with responses like the expert's do not fit into "
            f"data.rollout.max_context ({rollout.max_context}): {budget}",
            f"set data.rollout.max_context to {worst}, or data.rollout.max_turns lower",
        )
        return
    cut = f"; {full} of {len(sampled)} samples were cut by the context" if full else ""
    yield ok(f"{budget}; data.rollout.max_context is {rollout.max_context}{cut}")


def _longest_response(subject: ExaminedRun) -> int | None:
    lengths = [len(turn.completion.token_ids) for t in subject.expert_play for turn in t.turns]
    return max(lengths, default=None)


def _check_summaries(whole: list[Trajectory], subject: ExaminedRun) -> Finding:
    """Compare a context of a summary and one turn, after which a summary must fit, with the
    budget."""
    rollout, chat = subject.data.rollout, subject.chat
    request = rollout.memory.summary_request
    assert request is not None
    (asked,) = chat.encode_parts([chat.summary_context(request, stopped=False)])
    first = max(len(each.turns[0].prompt_ids) for each in whole)
    later = max((len(t.prompt_ids) for each in whole for t in each.turns[1:]), default=0)
    # The first message is the request, and the turn's own message comes after the summary.
    needed = first + later + 2 * len(asked) + 3 * rollout.max_response_tokens
    limit = rollout.memory.limit(rollout.max_context)
    found = (
        f"a context with a summary, a turn and the next summary takes up to {needed} tokens; "
        f"memory {type(rollout.memory).__name__} has {limit}"
    )
    remedy = f"set data.rollout.max_context (and memory.budget) to {needed} or more"
    if first + len(asked) + 2 * rollout.max_response_tokens > limit:
        return failure(f"no turn can be played: {found}", remedy)
    return warning(found, remedy) if needed > limit else ok(found)


def _longest(whole: list[Trajectory], subject: ExaminedRun) -> int:
    """Return the tokens of the longest training sequence with responses of the largest size."""
    rollout = subject.data.rollout
    if rollout.memory.cuts:
        return max(_room(sequence, subject) for each in whole for sequence in each.sequences)
    first = max(len(each.turns[0].prompt_ids) for each in whole)
    later = max((len(t.prompt_ids) for each in whole for t in each.turns[1:]), default=0)
    # Environments end sooner than max_turns if their actions are used up.
    turns = max(len(each.turns) for each in whole)
    return first + (turns - 1) * later + turns * rollout.max_response_tokens


def _room(sequence: TokenSequence, subject: ExaminedRun) -> int:
    """Return the tokens of a sequence that was played without limits, and of a response of the
    largest size at its end."""
    last = len(sequence.answers[-1].completion.token_ids)
    return len(sequence.token_ids) - last + subject.data.rollout.max_response_tokens


def _is_cut(trajectory: Trajectory, subject: ExaminedRun, response: int | None) -> bool:
    """Return whether a trajectory would be cut if each response were as long as the expert's."""
    rollout = subject.data.rollout
    if rollout.memory.cuts:
        longest = max(_room(sequence, subject) for sequence in trajectory.sequences)
        return longest > rollout.max_context
    length = rollout.max_response_tokens if response is None else response
    used = 0
    for turn in trajectory.turns:
        used += len(turn.prompt_ids)
        if used + rollout.max_response_tokens > rollout.max_context:
            return True
        used += length
    return False
