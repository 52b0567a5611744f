"""``ScienceWorld``: elementary science experiments in words, simulated in Java."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ragen_pl.envs.adapters.remembered import Remembered
from ragen_pl.envs.base import one_of
from ragen_pl.envs.packages import load
from ragen_pl.envs.pieces import SampledPieces
from ragen_pl.envs.replay import ReplayState
from ragen_pl.envs.splits import Split
from ragen_pl.errors import ConfigError

_JAVA_OPTIONS = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2", "-XX:+UseSerialGC")
"""The simulator iterates over sets of objects without hash codes of their own: unless all of these
are equal, the same variation differs from one load to the next. One thread collects the garbage."""
_UNKNOWN = "No known action matches that input."
_REFUSED = ("reset task",)
"""Commands that would begin the episode again."""
_LONGEST = 200
_INSTRUCTION = (
    "Do a science task by commands, such as: look around, open door to kitchen, go to kitchen, "
    "pick up thermometer, use thermometer on water, move egg to blue box, pour water in pot, "
    "activate stove, connect battery to wire, focus on egg, wait, inventory.\n"
    "Focus only on what the task names: focusing on anything else ends it."
)
_SAMPLED = 5
"""Episodes that the vocabulary is taken from."""


class ScienceWorld(ReplayState):
    """ScienceWorld's tasks, such as boiling a substance or finding a living thing.

    The seed decides the task and its variation, and nothing is random after it. Commands are free
    text. The reward is the gain of the score, which is 1 when the task is done and begins a little
    above 0 where the start has something of it; a wrong step that cannot be undone ends the episode
    with a score of -1. The expert is the
    simulator's own solution, followed as far as the moves followed it.

    It needs Java 8 or later. One virtual machine, which is started at the first reset, simulates
    all environments of a process, and what commands lead to is remembered for all of them: loading
    a variation takes up to a second.

    Args:
        tasks: Names of tasks to choose from.
        simplifications: ScienceWorld's simplifications, separated by commas; ``easy`` has all.
        split: Variations as ScienceWorld divides them: ``train`` for training, ``eval`` for its
            test set; ``all`` for these and those for development.
        max_actions: Maximum actions per trajectory.
    """

    name = "scienceworld"
    actions: tuple[str, ...] | None = None

    def __init__(
        self,
        tasks: Sequence[str] = ("find-living-thing",),
        simplifications: str = "easy",
        split: Split = "train",
        max_actions: int = 30,
    ) -> None:
        if max_actions < 1:
            raise ValueError(f"max_actions: {max_actions} is not positive")
        known = load("scienceworld.constants", "ScienceWorld", "scienceworld").ID2TASK.values()
        for task in tasks:
            if task not in known:
                nearest = get_close_matches(task, known, n=1)
                hint = f"did you mean {nearest[0]!r}? " if nearest else ""
                raise ValueError(f"tasks: {task!r} is unknown; {hint}known are {', '.join(known)}")
        if not tasks:
            raise ValueError(f"tasks: an empty list; known are {', '.join(known)}")
        self.tasks, self.simplifications = tuple(tasks), simplifications
        self.split, self.max_actions = one_of("split", split, Split), max_actions
        self._start: _Start | None = None
        self._commands: tuple[str, ...] = ()
        """The moves that the simulator was given."""
        self._text, self._score = "", 0
        self._simulation: _Simulation | None = None
        self._pieces = SampledPieces()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_simulation": None}

    @property
    def instruction(self) -> str:
        """How to give commands, and the task."""
        return _INSTRUCTION if self._start is None else f"{_INSTRUCTION}\n{self._start.goal}"

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Load the variation of a task that the seed decides."""
        rng = random.Random(f"scienceworld {seed}")
        task = rng.choice(self.tasks)
        variations = _Machine.of_this_process().variations(task, self.split)
        place = task, rng.choice(variations), self.simplifications
        self._start = _STARTS.get(place, lambda: _Start.load(*place))
        self._commands, self._score, self._text = (), self._start.score, self._start.text
        return {"difficulty": task}

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Give a command."""
        command = " ".join(action.split()).lower()
        if len(command) > _LONGEST or not command.isascii() or command in _REFUSED:
            self._text = _UNKNOWN
            return 0.0, False, False, {"success": False}
        self._commands = (*self._commands, command)
        seen = self._look()
        gain, self._score, self._text = (seen.score - self._score) / 100, seen.score, seen.text
        ends = seen.completed or seen.score < 0
        return gain, ends, False, {"success": ends and seen.score >= 100}

    def _look(self) -> _Seen:
        """Return what the commands so far have led to."""
        assert self._start is not None
        start, commands = self._start, self._commands
        return _REMEMBERED.get((start, commands), lambda: self._own_simulation(start).at(commands))

    def _own_simulation(self, start: _Start) -> _Simulation:
        current = self._simulation
        if current is None or current.start != start or not current.is_of_this_process:
            current = self._simulation = _Simulation(start)
        return current

    def render_text(self) -> str:
        """Return what the last command led to."""
        return self._text

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next commands of the simulator's solution, without a thought.

        Raises:
            ValueError: if all of it was followed.
        """
        assert self._start is not None
        done, solution = 0, self._start.solution
        for command in self._commands:
            done += done < len(solution) and command == solution[done].lower()
        rest = solution[done:]
        if not rest:
            raise ValueError("the solution is at its end, and the task is not done")
        return "", rest[:max_actions]

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of sampled first observations."""
        yield from self._pieces.of(self, _SAMPLED)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What commands lead to."""

    text: str
    score: int
    """From -100 to 100."""
    completed: bool


@dataclass(frozen=True, slots=True)
class _Start:
    """A variation of a task, and what the simulator says of it."""

    task: str
    variation: int
    simplifications: str
    goal: str
    solution: tuple[str, ...]
    text: str
    """What is seen at first."""
    score: int
    """The score at first."""

    @classmethod
    def load(cls, task: str, variation: int, simplifications: str) -> _Start:
        """Load a variation.

        Raises:
            ValueError: if there is no such simplification.
        """
        machine = _Machine.of_this_process()
        for each in filter(None, simplifications.split(",")):
            if each not in machine.simplifications:
                raise ValueError(
                    f"simplifications: {each!r} is unknown; known are "
                    f"{', '.join(machine.simplifications)}"
                )
        with machine.turn:
            world = machine.world()
            world.load(task, variation, simplifications, True)
            world.reset()
            goal, solution = world.getTaskDescription(), tuple(world.getGoldActionSequence())
            text = str(world.step("look around")).strip()
            score = round(100 * world.getScore())
        return cls(task, variation, simplifications, str(goal).strip(), solution, text, score)


_STARTS: Remembered[_Start] = Remembered(4096)
_REMEMBERED: Remembered[_Seen] = Remembered(16384)
"""What is seen, by start and commands."""


class _Simulation:
    """One world in the virtual machine, in the episodes of one start."""

    def __init__(self, start: _Start) -> None:
        self.start, self._machine = start, _Machine.of_this_process()
        self._world = self._machine.world()
        self._commands: tuple[str, ...] | None = None
        """Those since the load; None before it."""
        self._seen: _Seen | None = None

    @property
    def is_of_this_process(self) -> bool:
        """Whether its virtual machine is this process's."""
        return self._machine.process == os.getpid()

    def at(self, commands: tuple[str, ...]) -> _Seen:
        """Return what commands lead to; at least one."""
        with self._machine.turn:
            return self._go(commands)

    def _go(self, commands: tuple[str, ...]) -> _Seen:
        done = self._commands
        if done is None or len(done) >= len(commands) or commands[: len(done)] != done:
            start, self._commands = self.start, None
            self._world.load(start.task, start.variation, start.simplifications, True)
            self._world.reset()
            self._world.step("look around")
            done = ()
        for command in commands[len(done) :]:
            text = str(self._world.step(command)).strip()
            score = round(100 * self._world.getScore())
            self._seen = _Seen(text, score, bool(self._world.getCompleted()))
        self._commands = commands
        assert self._seen is not None
        return self._seen


class _Machine:
    """The Java virtual machine of this process; simulations in it take turns."""

    _starting = threading.Lock()
    _shared: _Machine | None = None

    def __init__(self) -> None:
        if shutil.which("java") is None:
            raise ConfigError(
                "ScienceWorld needs Java, which is not installed: install Java 8 or later, such as "
                "apt-get install default-jre-headless"
            )
        py4j = load("py4j.java_gateway", "ScienceWorld", "scienceworld")
        jar = load("scienceworld.constants", "ScienceWorld", "scienceworld").JAR_PATH
        # It writes a table of its objects into its working directory.
        self._folder = tempfile.TemporaryDirectory(prefix="scienceworld-")
        port, child = py4j.launch_gateway(
            classpath=jar,
            die_on_exit=True,
            javaopts=list(_JAVA_OPTIONS),
            cwd=self._folder.name,
            return_proc=True,
        )
        parameters = py4j.GatewayParameters(auto_field=True, port=port)
        self._gateway = py4j.JavaGateway(gateway_parameters=parameters, java_process=child)
        self.process, self.turn = os.getpid(), threading.RLock()
        self.simplifications = ("easy", *self.world().getPossibleSimplifications().split(", "))

    @classmethod
    def of_this_process(cls) -> _Machine:
        """Return the machine, which is started if this process has none."""
        with cls._starting:
            if cls._shared is None or cls._shared.process != os.getpid():
                cls._shared = cls()
            return cls._shared

    def world(self) -> Any:
        """Make a simulation; it is discarded with the object that is returned."""
        return self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    @lru_cache(maxsize=256)  # noqa: B019 (there is one machine, which lives as long as the process)
    def variations(self, task: str, split: Split) -> tuple[int, ...]:
        """List the variations of a task."""
        with self.turn:
            world = self.world()
            world.load(task, 0, "", False)
            train, test = tuple(world.getVariationsTrain()), tuple(world.getVariationsTest())
            development = tuple(world.getVariationsDev())
        if split == "all":
            return tuple(sorted((*train, *development, *test)))
        return train if split == "train" else test
