"""``RecordedPlay``, the base class of teachers that read files: which lines are used, and what
became of the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import ClassVar

from ragen_pl.errors import ConfigError
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.teachers.base import Lesson, Lessons, Teacher, TeachingTask
from ragen_pl.rollout.teachers.recordings import (
    RecordedExchange,
    Recording,
    RefusedLineError,
    read_lines,
)
from ragen_pl.rollout.teachers.replay import Replayer
from ragen_pl.types import Trajectory

_EXAMPLES = 12
"""Kinds of refusals that are told, the most frequent first."""


@dataclass(frozen=True)
class RecordedPlay(Teacher):
    """Play that was recorded in JSON lines.

    Each line is checked; the page at the start of the run counts those that are refused, by reason.

    Args:
        files: Paths of the files; patterns such as ``play/*.jsonl`` stand for several.
        success_only: Whether to leave out lines without success, or that do not say.
        min_return: Least return of a line; null for any. A line's return is its ``return`` or, in
            messages, its ``reward`` or ``score``.
        best_per_start: How many lines of each initial state are used, those of the highest return
            first; null for all.
    """

    teaches_on_first_rank: ClassVar[bool] = True
    lessons_are_saved: ClassVar[bool] = True

    files: tuple[str, ...]
    success_only: bool = False
    min_return: float | None = None
    best_per_start: int | None = None

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("warm_start.teacher.files is empty; name at least one file")
        if self.best_per_start is not None and self.best_per_start < 1:
            raise ValueError(
                f"warm_start.teacher.best_per_start is {self.best_per_start}; it must be at least "
                "1, or null for all"
            )

    def teach(self, task: TeachingTask) -> Lessons:
        page = Page()
        ranked = list(self.chosen(task, page))
        lessons: dict[Lesson, tuple[Recording, Sequence[bool]]] = {}
        replayer = Replayer.of(task)
        for place, recording in ranked:
            if len(lessons) == task.demonstrations:
                page.surplus += 1
                continue
            try:
                imitated = [self.is_imitated(turn) for turn in recording.turns]
                lesson = self.lesson(replayer.replay(recording), imitated, task.chat)
                if not any(any(row.loss_mask) for row in lesson.rows):
                    raise RefusedLineError("no turn to imitate: broken format or untrue thoughts")
                if lesson in lessons:
                    raise RefusedLineError("the same as an earlier line")
            except RefusedLineError as reason:
                page.refuse(place, reason)
                continue
            lessons[lesson] = recording, imitated
        if not lessons:
            raise ConfigError(
                f"warm_start.teacher is {type(self).__name__}, but no line of "
                f"{', '.join(self.files)} can be taught in {task.env.name}\n{page.refusals}"
            )
        told = page.told(lessons.values(), replayer)
        return Lessons(tuple(lessons), told)

    def is_imitated(self, turn: RecordedExchange) -> bool:
        """Return whether a turn's response is imitated."""
        return turn.is_imitated

    def lesson(self, trajectory: Trajectory, imitated: Sequence[bool], chat: Chat) -> Lesson:
        """Return what is imitated of a line that was played again.

        Args:
            trajectory: The line.
            imitated: Whether each turn's response is imitated.
            chat: The agent's chat protocol.
        """
        return Lesson.of(trajectory, imitated)

    def chosen(self, task: TeachingTask, page: Page) -> Iterable[tuple[str, Recording]]:
        """Return the lines that pass the filters, with their places, in the order of the files."""
        passed: list[tuple[str, Recording]] = []
        paths = list(dict.fromkeys(path for each in self.files for path in _matching(each)))
        page.files = len(paths)
        for place, recording in read_lines(paths):
            page.lines += 1
            try:
                if isinstance(recording, RefusedLineError):
                    raise recording
                self._filter(recording, task)
                passed.append((place, recording))
            except RefusedLineError as reason:
                page.refuse(place, reason)
        if self.best_per_start is None:
            return passed
        by_start: dict[str, list[int]] = defaultdict(list)
        for index, (_, recording) in enumerate(passed):
            by_start[recording.start].append(index)
        kept = set[int]()
        for indices in by_start.values():
            if any(passed[index][1].total_reward is None for index in indices[1:]):
                unknown = RefusedLineError("no return, by which best_per_start would choose")
                for index in indices:
                    page.refuse(passed[index][0], unknown)
                continue
            best = sorted(indices, key=lambda index: -(passed[index][1].total_reward or 0.0))
            kept.update(best[: self.best_per_start])
            for index in best[self.best_per_start :]:
                page.refuse(passed[index][0], RefusedLineError("a better one of its start is used"))
        return [passed[index] for index in sorted(kept)]

    def _filter(self, recording: Recording, task: TeachingTask) -> None:
        """Refuse a line that is of another task or fails a filter."""
        if recording.env is not None and recording.env != task.env.name:
            raise RefusedLineError(f"of another environment ({recording.env})")
        if task.difficulties and recording.difficulty not in task.difficulties:
            raise RefusedLineError("of no difficulty in warm_start.difficulties")
        if self.success_only and not recording.success:
            known = recording.success is not None
            raise RefusedLineError(
                "no success" if known else "it does not say whether it succeeded"
            )
        if self.min_return is not None:
            if recording.total_reward is None:
                raise RefusedLineError("it does not say its return")
            if recording.total_reward < self.min_return:
                raise RefusedLineError(f"a return below {self.min_return:g}")


def _matching(pattern: str) -> list[Path]:
    """Return the files of a path or a pattern, sorted.

    Raises:
        ConfigError: if there is none.
    """
    if Path(pattern).is_file():
        return [Path(pattern)]
    matches = glob(pattern, recursive=True)  # noqa: PTH207  a Path's would need a folder
    found = sorted(path for path in map(Path, matches) if path.is_file())
    if not found:
        raise ConfigError(f"warm_start.teacher.files has {pattern}, but there is no such file")
    return found


# --- what was read --------------------------------------------------------------------------------


@dataclass(slots=True)
class Page:
    """What became of the lines."""

    files: int = 0
    lines: int = 0
    surplus: int = 0
    """Lines beyond the wanted number."""
    _refused: Counter[str] = field(default_factory=Counter)
    _first: dict[str, str] = field(default_factory=dict)
    """Where each reason was met first."""

    def refuse(self, place: str, reason: RefusedLineError) -> None:
        """Count a line that is not taught."""
        self._refused[str(reason)] += 1
        self._first.setdefault(str(reason), place)

    @property
    def refusals(self) -> str:
        """A line per reason, the most frequent first."""
        common = self._refused.most_common()
        told = [f"  {n} refused: {why} (first {self._first[why]})" for why, n in common[:_EXAMPLES]]
        if common[_EXAMPLES:]:
            told.append(f"  {sum(n for _, n in common[_EXAMPLES:])} refused for other reasons")
        return "\n".join(told)

    def told(self, taught: Iterable[tuple[Recording, Sequence[bool]]], replayer: Replayer) -> str:
        """Return the page.

        Args:
            taught: The lines that are used, with whether each turn is imitated.
            replayer: What played them again.
        """
        used, marks = zip(*taught, strict=True)
        sources = Counter(each.source for each in used)
        returns = [each.total_reward for each in used if each.total_reward is not None]
        known = [each.success for each in used if each.success is not None]
        played = Counter(each.eval_set for each in used if each.eval_set is not None)
        turns, imitated = sum(map(len, marks)), sum(map(sum, marks))
        facts = [
            f"{len(used)} of {self.lines} lines of {self.files} files"
            + (f", {self.surplus} beyond warm_start.demonstrations" if self.surplus else ""),
            "  from " + ", ".join(f"{name} ({n})" for name, n in sources.most_common(5)),
            f"  {imitated} of {turns} turns imitated; {replayer.kept} responses in their own "
            f"tokens, {replayer.encoded} encoded anew",
        ]
        if returns:
            facts.append(f"  mean return {sum(returns) / len(returns):.2f}")
        if known:
            facts.append(f"  {sum(known)} of {len(known)} succeeded")
        if played:
            sets = ", ".join(f"{name} ({n})" for name, n in played.items())
            facts.append(
                f"  warning: play on evaluation sets: {sets}; a score on the same starts is no "
                "generalization"
            )
        return "\n".join([*facts, *([self.refusals] if self._refused else [])])
