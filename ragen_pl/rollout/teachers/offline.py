"""``Offline``, recorded play as the teacher: this library's trajectories, or messages of others."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any, ClassVar

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode
from ragen_pl.rollout.teachers.base import Lesson, Lessons, Teacher, TeachingTask
from ragen_pl.rollout.teachers.recordings import (
    RecordedExchange,
    RecordedTokens,
    Recording,
    RefusedLineError,
    read_lines,
)
from ragen_pl.types import Completion, EpisodeId, StopReason

_EXAMPLES = 12
"""Kinds of refusals that are told, the most frequent first."""


@dataclass(frozen=True)
class Offline(Teacher):
    """Play that was recorded in JSON lines, such as a stronger model's.

    A line is a trajectory as ``predict`` and every run write it (``docs/trajectories.md``), or
    ``messages``, or ``prompt`` and ``completion``, as TRL and verifiers have them. What the agent
    sees is written anew in this run's protocol from a trajectory, whose responses keep their tokens
    if they are this tokenizer's; messages are taken as they are. Each line is checked; the page at
    the start of the run counts those that are refused, by reason.

    Imitated are the assistant's turns alone: of a trajectory those that followed the format without
    an untrue thought, of ``prompt`` and ``completion`` the completion's.

    Args:
        files: Paths of the files; patterns such as ``play/*.jsonl`` stand for several.
        success_only: Whether to leave out lines without success, or that do not say.
        min_return: Least return of a line; null for any. A line's return is its ``return`` or, in
            messages, its ``reward`` or ``score``.
        best_per_start: How many lines of each initial state are used, those of the highest return
            first; null for all.
        imitate_untrue: Whether responses are imitated whose thought the environment found untrue,
            such as thoughts in words that it cannot judge.
    """

    teaches_on_first_rank: ClassVar[bool] = True
    lessons_are_saved: ClassVar[bool] = True

    files: tuple[str, ...]
    success_only: bool = False
    min_return: float | None = None
    best_per_start: int | None = None
    imitate_untrue: bool = False

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("warm_start.teacher.files is empty; name at least one file")
        if self.best_per_start is not None and self.best_per_start < 1:
            raise ValueError(
                f"warm_start.teacher.best_per_start is {self.best_per_start}; it must be at least "
                "1, or null for all"
            )

    def teach(self, task: TeachingTask) -> Lessons:
        page = _Page()
        ranked = list(self._ranked(task, page))
        lessons: dict[Lesson, tuple[Recording, Sequence[bool]]] = {}
        writer = _Writer.of(task)
        for place, recording in ranked:
            if len(lessons) == task.demonstrations:
                page.surplus += 1
                continue
            try:
                imitated = [self._is_imitated(turn) for turn in recording.turns]
                lesson = writer.written(recording, imitated)
                if lesson in lessons:
                    raise RefusedLineError("the same as an earlier line")
            except RefusedLineError as reason:
                page.refuse(place, reason)
                continue
            lessons[lesson] = recording, imitated
        if not lessons:
            raise ConfigError(
                f"warm_start.teacher is Offline, but no line of {', '.join(self.files)} can be "
                f"taught in {task.env.name}\n{page.refusals}"
            )
        told = page.told(lessons.values(), writer)
        return Lessons(tuple(lessons), told)

    def _is_imitated(self, turn: RecordedExchange) -> bool:
        return turn.is_imitated and (self.imitate_untrue or not turn.is_untrue)

    def _ranked(self, task: TeachingTask, page: _Page) -> Iterable[tuple[str, Recording]]:
        """Return the lines that pass the filters, in the order of the files."""
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
class _Page:
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

    def told(self, taught: Iterable[tuple[Recording, Sequence[bool]]], writer: _Writer) -> str:
        """Return the page.

        Args:
            taught: The lines that are used, with whether each turn is imitated.
            writer: Their writer.
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
            f"  {imitated} of {turns} turns imitated; {writer.kept} responses in their own tokens, "
            f"{writer.encoded} encoded anew",
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


# --- lines to lessons -----------------------------------------------------------------------------


class _RecordedEnv(TextEnv):
    """An environment in which a recorded episode happens again, whatever is done.

    Args:
        env: The environment that it stands for, in the episode's initial state.
        recording: The episode.
        played: The actions that were executed in each turn.
    """

    def __init__(
        self, env: CheckedEnv, recording: Recording, played: Sequence[tuple[str, ...]]
    ) -> None:
        self._env, self._recording, self._played = env, recording, played
        self.name, self.actions = env.name, env.actions
        steps = sum(map(len, played))
        # Of dialogues nothing is known of limits, and nothing is said of them.
        self.max_actions = env.max_actions if recording.state is not None else max(1, steps)
        self._turn = self._step = 0

    @property
    def instruction(self) -> str:
        recorded = self._recording
        if recorded.state is not None or recorded.system is None:
            return self._env.instruction
        return recorded.system

    @property
    def actions_text(self) -> str:
        return self._env.env.actions_text

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self._env.env.tools

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._turn = self._step = 0
        return self.render_text(), {"difficulty": self._recording.difficulty}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        while not self._played[self._turn]:
            self._turn += 1  # a turn without a known action, after which the state was the same
        self._step += 1
        turns = self._recording.turns
        reward = 0.0
        if self._step == len(self._played[self._turn]):
            reward = turns[self._turn].reward
            self._turn, self._step = self._turn + 1, 0
        ends = self._turn == len(turns)
        success = ends and bool(self._recording.success)
        return self.render_text(), reward, ends, False, {"success": success}

    def render_text(self) -> str:
        turns = self._recording.turns
        return turns[min(self._turn, len(turns) - 1)].message

    def get_state(self) -> dict[str, Any]:
        return {"turn": self._turn, "step": self._step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._turn, self._step = state["turn"], state["step"]


@dataclass(slots=True)
class _Writer:
    """The writer of recordings in this run's protocol."""

    env: TextEnv
    seed: int
    chat: Chat
    plain: Chat
    """The same protocol with messages as they are."""
    half_plain: Chat
    """The same with this run's system message, for dialogues without one."""
    rollout: RolloutConfig
    kept: int = 0
    """Responses with the tokens that were recorded."""
    encoded: int = 0

    @classmethod
    def of(cls, task: TeachingTask) -> _Writer:
        """Return the writer for a task."""
        chat = task.chat
        half_plain, plain = (
            Chat(prompts, chat.tokenizer, chat.markers, chat.max_actions_per_turn)
            for prompts in (
                replace(chat.prompts, turn="{observation}"),
                replace(chat.prompts, turn="{observation}", system="{instruction}"),
            )
        )
        return cls(task.env, task.first_seed, chat, plain, half_plain, task.rollout)

    def written(self, recording: Recording, imitated: Sequence[bool]) -> Lesson:
        """Return a recording as a lesson.

        Args:
            recording: The episode.
            imitated: Whether each turn's response is to be imitated.

        Raises:
            RefusedLineError: if it does not fit the environment, the format or the limits.
        """
        env, is_ours = CheckedEnv(copy.deepcopy(self.env)), recording.state is not None
        try:
            env.reset(self.seed, noise_seed=0)
            if recording.state is not None:
                env.env.set_state(copy.deepcopy(dict(recording.state)))
            known = env.actions
        except (EnvError, KeyError, TypeError, ValueError) as error:
            raise RefusedLineError("the environment cannot enter its initial state") from error
        chat = self.chat if is_ours else self.half_plain if recording.system is None else self.plain
        last = recording.turns[-1]
        played = [
            self._played(turn, known, chat, may_be_cut=turn is last) for turn in recording.turns
        ]
        limits = replace(self.rollout, max_turns=len(recording.turns), rewards={})
        episode = ChatEpisode(
            _RecordedEnv(env, recording, played),
            chat,
            limits,
            seed=0,
            episode_id=EpisodeId(-1, 0, 0),
        )
        for turn in recording.turns:
            if not episode.begin_turn():
                break
            episode.receive(self._completion(turn, chat))
        if len(episode.turns) < len(recording.turns):
            is_full = episode.stop_reason is StopReason.CONTEXT_FULL
            raise RefusedLineError(
                f"too long for the context (rollout.max_context is {self.rollout.max_context})"
                if is_full
                else "more actions than an episode of the environment has"
            )
        lesson = Lesson.of(episode.trajectory(), imitated)
        if not any(any(row.loss_mask) for row in lesson.rows):
            raise RefusedLineError("no turn to imitate: broken format or untrue thoughts")
        return lesson

    def _played(
        self,
        turn: RecordedExchange,
        known: tuple[str, ...] | None,
        chat: Chat,
        *,
        may_be_cut: bool,
    ) -> tuple[str, ...]:
        """Return the actions of a turn as this run's protocol reads them.

        Args:
            turn: The turn.
            known: Names of all actions; None for free text.
            chat: The protocol.
            may_be_cut: Whether the episode may have ended before all of them were executed.
        """
        if not turn.response.startswith(chat.opening_tag):
            raise RefusedLineError(f"a response that does not begin with {chat.opening_tag}")
        parsed = chat.parse_whole(turn.response, known)
        if turn.actions is None:
            if not parsed.is_valid:
                raise RefusedLineError("a response that breaks the format or names no known action")
            return parsed.actions
        cut = len(turn.actions) if may_be_cut and turn.actions else None
        if parsed.actions[:cut] != turn.actions:
            raise RefusedLineError("actions that this run reads otherwise")
        return turn.actions

    def _completion(self, turn: RecordedExchange, chat: Chat) -> Completion:
        """Return a response in its own tokens, if they are this tokenizer's; else encoded anew."""
        text, recorded = turn.response.removeprefix(chat.opening_tag), turn.tokens
        limit = self.rollout.max_response_tokens
        if recorded is not None and self._is_own(recorded, text, chat):
            ids, stopped = recorded.token_ids, recorded.stopped
            self.kept += 1
        else:
            (encoded,) = chat.encode([text])
            ids, stopped = (*encoded, chat.markers.end), True
            self.encoded += 1
        if len(ids) > limit:
            raise RefusedLineError(
                f"a response that is too long (rollout.max_response_tokens is {limit})"
            )
        zeros = (0.0,) * len(ids)
        return Completion(ids, zeros, zeros, stopped)

    @staticmethod
    def _is_own(recorded: RecordedTokens, text: str, chat: Chat) -> bool:
        ids, end = recorded.token_ids, chat.markers.end
        if not all(0 <= token < len(chat.tokenizer) for token in ids) or end in ids[:-1]:
            return False
        return (ids[-1] == end) == recorded.stopped and chat.decode(ids) == text
