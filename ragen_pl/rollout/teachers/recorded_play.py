"""``RecordedPlay``, the base class of teachers that read files: which lines are used, and what
became of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
from ragen_pl.rollout.teachers.wording import Wording
from ragen_pl.types import Trajectory

Line = tuple[str, Recording]
"""A line with its place, ``file:number``."""
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
        return self.taught(self.chosen(task, page), task, page)

    def taught(self, chosen: Sequence[Line], task: TeachingTask, page: Page) -> Lessons:
        """Play lines again and return what of them is imitated.

        Args:
            chosen: The lines, in the order of the files.
            task: What is wanted.
            page: What became of the lines so far.

        Raises:
            ConfigError: if nothing is left to imitate.
        """
        lines, replayer, wording = self._ranked(chosen, page), Replayer.of(task), Wording(task)
        # The best of each start are known after all lines are, the first lines at once.
        most = task.demonstrations if self.best_per_start is None else len(lines)
        taught, used = dict[Lesson, _Taught](), Counter[str]()
        for number, place, recording in lines:
            if len(taught) == most:
                page.surplus += 1
                continue
            try:
                if used[recording.start] == self.best_per_start:
                    raise RefusedLineError("a better one of its start is used")
                trajectory = replayer.replay(recording)
                imitated = [self.is_imitated(turn) for turn in recording.turns]
                lesson = self.lesson(trajectory, imitated, task.chat)
                if not any(any(row.loss_mask) for row in lesson.rows):
                    raise RefusedLineError("no turn to imitate: broken format or untrue thoughts")
                if lesson in taught:
                    raise RefusedLineError("the same as an earlier line")
            except RefusedLineError as reason:
                page.refuse(place, reason)
                continue
            used[recording.start] += 1
            kept, difference = _own(recording, trajectory), wording.difference(recording)
            taught[lesson] = _Taught(number, place, recording, sum(imitated), kept, difference)
        if not taught:
            raise ConfigError(
                f"warm_start.teacher is {type(self).__name__}, but no line of "
                f"{', '.join(self.files)} can be taught in {task.env.name}\n{page.refusals}\n"
                "  what a line must have: docs/teachers.md"
            )
        in_order = sorted(taught, key=lambda lesson: taught[lesson].number)
        lessons, surplus = in_order[: task.demonstrations], in_order[task.demonstrations :]
        page.surplus += len(surplus)
        used_lines = [taught[lesson] for lesson in lessons]
        return Lessons(tuple(lessons), page.told(used_lines), metrics=_metrics(used_lines))

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

    def chosen(self, task: TeachingTask, page: Page) -> list[Line]:
        """Return the lines that pass the filters, in the order of the files."""
        passed: list[Line] = []
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
        return passed

    def _ranked(self, lines: Sequence[Line], page: Page) -> list[tuple[int, str, Recording]]:
        """Return lines with their numbers and places, the best first if that matters."""
        numbered = [(number, *line) for number, line in enumerate(lines)]
        if self.best_per_start is None:
            return numbered
        unknown = {line.start for _, line in lines if line.total_reward is None}
        several = Counter(line.start for _, line in lines)
        ranked = list[tuple[int, str, Recording]]()
        for number, place, line in numbered:
            if line.start in unknown and several[line.start] > 1:
                reason = "no return, by which best_per_start would choose"
                page.refuse(place, RefusedLineError(reason))
            else:
                ranked.append((number, place, line))
        return sorted(ranked, key=lambda each: -(each[2].total_reward or 0.0))

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
        is_folder = Path(pattern).is_dir()
        why = f"a folder: name {pattern}/*.jsonl" if is_folder else "but there is no such file"
        raise ConfigError(f"warm_start.teacher.files has {pattern}, {why}")
    return found


# --- what was read --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Taught:
    """A line that is used."""

    number: int
    """Its number among those that passed the filters, in the order of the files."""
    place: str
    recording: Recording
    imitated: int
    """Its turns that are imitated."""
    kept: int
    """Its responses with the tokens that were recorded."""
    difference: str | None
    """The first difference between its messages and this run's prompts."""


def _metrics(taught: Sequence[_Taught]) -> dict[str, float]:
    """Return the share of the dialogues that are not worded as the run's prompts; nothing without
    dialogues."""
    dialogues = [each for each in taught if each.recording.state is None]
    if not dialogues:
        return {}
    other = sum(each.difference is not None for each in dialogues)
    return {"other_wording": other / len(dialogues)}


def _told_of_wording(taught: Sequence[_Taught]) -> list[str]:
    """Return what to do about dialogues that are not worded as the run's prompts."""
    dialogues = sum(each.recording.state is None for each in taught)
    others = [each for each in taught if each.difference is not None]
    if not others:
        return []
    return [
        f"  warning: {len(others)} of {dialogues} dialogues are not worded as this run's prompts, "
        "so the agent never meets what they teach it to answer: word them so, or set data.prompts "
        "and the environment's keys to what was recorded",
        f"    {others[0].place}: {others[0].difference}",
    ]


def _own(recording: Recording, trajectory: Trajectory) -> int:
    """Return how many responses have the tokens that were recorded."""
    pairs = zip(recording.turns, trajectory.turns, strict=True)
    return sum(
        recorded.tokens is not None and recorded.tokens.token_ids == turn.completion.token_ids
        for recorded, turn in pairs
    )


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

    def told(self, taught: Sequence[_Taught]) -> str:
        """Return the page about the lines that are used."""
        used = [each.recording for each in taught]
        sources = Counter(each.source for each in used)
        returns = [each.total_reward for each in used if each.total_reward is not None]
        known = [each.success for each in used if each.success is not None]
        played = Counter(each.eval_set for each in used if each.eval_set is not None)
        turns = sum(len(each.turns) for each in used)
        imitated, kept = sum(each.imitated for each in taught), sum(each.kept for each in taught)
        facts = [
            f"{len(used)} of {self.lines} lines of {self.files} files"
            + (f", {self.surplus} beyond warm_start.demonstrations" if self.surplus else ""),
            "  from " + ", ".join(f"{name} ({n})" for name, n in sources.most_common(5)),
            f"  {imitated} of {turns} turns imitated; {kept} responses in their own tokens, "
            f"{turns - kept} encoded anew",
        ]
        if returns:
            facts.append(f"  mean return {sum(returns) / len(returns):.2f}")
        if known:
            facts.append(f"  {sum(known)} of {len(known)} succeeded")
        if played:
            sets = ", ".join(f"{name} ({n})" for name, n in played.items())
            facts.append(
                f"  played as evaluation sets: {sets}; where this run is evaluated on the same "
                "starts, its score is no generalization"
            )
        facts += _told_of_wording(taught)
        return "\n".join([*facts, *([self.refusals] if self._refused else [])])
