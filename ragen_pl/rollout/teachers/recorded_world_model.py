"""``RecordedWorldModel``, transitions in words from recorded play, such as the policy's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.teachers.base import Lesson, LessonQuestion, Lessons, TeachingTask
from ragen_pl.rollout.teachers.recorded_play import Line, Page, RecordedPlay
from ragen_pl.rollout.teachers.recordings import RecordedExchange, Recording, RefusedLineError
from ragen_pl.rollout.teachers.replay import Replayer
from ragen_pl.rollout.teachers.world_model import (
    ENDED,
    LEADS_TO,
    announced_tokens,
    announcement,
    check_held_out,
    check_thinks,
    transition_questions,
)
from ragen_pl.types import Trajectory


@dataclass(frozen=True)
class RecordedWorldModel(RecordedPlay):
    """Recorded play in which every thought is replaced by the turn's actions and what the agent saw
    after them, as ``WorldModel`` writes it.

    The files are trajectories as ``predict`` and every run write them: play the policy itself, and
    it learns what its own actions lead to. The prediction is what was recorded, whatever else might
    have followed. A turn is imitated if its response followed the format and something is known of
    what came next: another observation, or the episode's end.

    Args:
        imitate_actions: Whether the choice of the actions is imitated, too; false trains the
            prediction and the answer's format alone.
        held_out: Initial states, at most half of all, whose lines are not imitated: on their
            transitions the predictions are tested before each iteration of the warm start and after
            the last.
    """

    imitate_actions: bool = True
    held_out: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_held_out(self.held_out)

    def check(self, env: TextEnv, *, think: bool) -> None:
        check_thinks(type(self).__name__, think=think)

    def vocabulary(self) -> Iterable[str]:
        return LEADS_TO, ENDED

    def teach(self, task: TeachingTask) -> Lessons:
        page = Page()
        lines = self._foretold(task, page)
        held_out = self._held_out(lines)
        for place, line in lines:
            if line.start in held_out:
                page.refuse(place, RefusedLineError("held out, to be asked about"))
        chosen = [(place, line) for place, line in lines if line.start not in held_out]
        asked = [line for _, line in lines if line.start in held_out]
        lessons = self.taught(chosen, task, page)
        return replace(
            lessons,
            told=f"predictions of what followed in recorded play, {lessons.told}",
            questions=tuple(_questions(asked, task)),
        )

    def lesson(self, trajectory: Trajectory, imitated: Sequence[bool], chat: Chat) -> Lesson:
        if self.imitate_actions:
            return Lesson.of(trajectory, imitated)
        given = [
            announced_tokens(turn, chat) if is_foretold else 0
            for turn, is_foretold in zip(trajectory.turns, imitated, strict=True)
        ]
        return Lesson.of(trajectory, imitated, given)

    def _foretold(self, task: TeachingTask, page: Page) -> list[Line]:
        """Return the lines that pass the filters, with predictions for thoughts."""
        lines = []
        for place, recording in self.chosen(task, page):
            try:
                lines.append((place, foretold(recording, task.chat)))
            except RefusedLineError as reason:
                page.refuse(place, reason)
        return lines

    def _held_out(self, lines: Iterable[Line]) -> set[str]:
        """Return the last of the initial states."""
        starts = list(dict.fromkeys(line.start for _, line in lines))
        return set(starts[len(starts) - min(self.held_out, len(starts) // 2) :])


def _questions(asked: Iterable[Recording], task: TeachingTask) -> Iterator[LessonQuestion]:
    replayer = Replayer.of(task)
    for line in asked:
        try:
            trajectory = replayer.replay(line)
        except RefusedLineError:
            continue  # nobody is asked about what cannot be played again
        imitated = [turn.is_imitated for turn in line.turns]
        yield from transition_questions(trajectory, imitated, task.chat)


def foretold(recording: Recording, chat: Chat) -> Recording:
    """Return a recording with predictions for thoughts, where it is known what followed.

    Raises:
        RefusedLineError: if it does not tell actions and observations from other text.
    """
    if recording.state is None:
        raise RefusedLineError("messages alone, which do not tell observations from other text")
    seen = [turn.message for turn in recording.turns[1:]]
    followed = [*seen, ENDED if recording.has_ended else None]
    pairs = zip(recording.turns, followed, strict=True)
    turns = tuple(_foretold_turn(*pair, chat) for pair in pairs)
    if not any(turn.is_imitated for turn in turns):
        raise RefusedLineError("no turn of which it is known what followed")
    return replace(recording, turns=turns)


def _foretold_turn(turn: RecordedExchange, seen: str | None, chat: Chat) -> RecordedExchange:
    if seen is None or not turn.actions or not turn.is_imitated:
        return replace(turn, is_imitated=False)
    thought = f"{announcement(turn.actions)}{seen}"
    response = f"{chat.opening_tag}{chat.response_text(thought, turn.actions)}"
    return replace(turn, response=response, is_untrue=False, tokens=None)
