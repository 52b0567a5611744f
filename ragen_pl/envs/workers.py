"""Environments in processes of their own, with a time limit for each call.

Only another process can be ended while it hangs. ``EnvHost.wrap`` returns an environment that has
the same methods and hands each call on to a process; whoever steps it need not know. A process that
exceeds the limit or dies costs the trajectory whose call it was; the others it was playing are
played again, from their seeds and actions, in the process that takes its place.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from ragen_pl.envs.base import Symmetry, TextEnv
from ragen_pl.envs.boundary import RemoteError
from ragen_pl.envs.picture import Drawing
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.runtime.user_faults import describe_fault, kind_of

_START_S = 120.0
"""Seconds that a process may take to start and to import the environment."""
_GRACE_S = 5.0
"""Seconds after the limit at which a process ends itself, should nobody else."""
_CHANGES_STATE = ("set_state", "step")
"""Methods that are called again when an environment is played again, besides ``reset``."""
_ALWAYS = ("reset", "step", "get_state", "set_state", "render_text")
_IF_DEFINED = (
    *("render", "state_hash", "anchor_key", "start_key", "difficulty_of", "thought_correct"),
    *("hindsight_turn", "thought_grounding", "features", "sample_actions"),
)
_SPECIAL = ("draw", "expert_turn", "symmetries", "vocabulary")
"""Methods whose arguments or values cannot be handed on as they are."""
_PROPERTIES = ("actions_text", "tools", "has_expert", "has_features", "is_lost")
"""Properties that have a default."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""Method, arguments, named arguments."""


class EnvHost:
    """The processes of one run that environments live in.

    They start with the first call and end with ``close``, at the end of this process, or when it is
    killed.

    Args:
        workers: Number of processes.
        limit: Seconds that one call may take; None for no limit.
        reset_limit: Seconds that a reset may take; None for those of any other call.
    """

    def __init__(self, workers: int, limit: float | None, reset_limit: float | None = None) -> None:
        self._workers = [_Worker(limit, reset_limit) for _ in range(workers)]
        self._numbers = count()
        atexit.register(self.close)

    def wrap(self, env: TextEnv) -> TextEnv:
        """Return an environment whose methods run in the processes.

        Raises:
            ValueError: when the environment cannot be pickled.
        """
        try:
            prototype = pickle.dumps(env)
        except Exception as error:  # the boundary to user code: any error is theirs
            raise ValueError(
                f"rollout.env_workers needs environments that can be pickled, but "
                f"{type(env).__name__} cannot ({describe_fault(error)}): create what it holds in "
                "reset, or set rollout.env_workers to 0"
            ) from error
        return _remote_class(type(env))(self, prototype, [], env.name)

    def close(self) -> None:
        """End the processes; a later call starts new ones."""
        for worker in self._workers:
            worker.stop()

    def place(self) -> tuple[int, _Worker]:
        """Return a new environment's number and its process."""
        number = next(self._numbers)
        return number, self._workers[number % len(self._workers)]


class _RemoteEnv(TextEnv):
    """An environment whose methods run in a process of a host.

    Args:
        host: The processes.
        prototype: The environment before its first reset, pickled.
        calls: What has happened to it since its last reset.
        name: Its name, which instances of one class may have of their own.
    """

    def __init__(self, host: EnvHost, prototype: bytes, calls: Sequence[Call], name: str) -> None:
        self._host, self._prototype, self._calls = host, prototype, list(calls)
        self.name = name
        self._number, self._worker = host.place()

    def __deepcopy__(self, memo: dict[int, Any]) -> TextEnv:
        return type(self)(self._host, self._prototype, self._calls, self.name)

    def __del__(self) -> None:
        worker = getattr(self, "_worker", None)
        if worker is not None:
            worker.forget(self._number)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        call: Call = (method, args, kwargs)
        if method == "reset":
            self._calls = []
        value = self._worker.call(self._number, self._prototype, self._calls, call)
        if method == "reset" or method in _CHANGES_STATE:
            self._calls.append(call)
        return value

    @property
    def instruction(self) -> str:
        return self._call("instruction")  # type: ignore[no-any-return]

    @property
    def actions(self) -> tuple[str, ...] | None:  # type: ignore[override]
        return self._call("actions")  # type: ignore[no-any-return]

    @property
    def max_actions(self) -> int:  # type: ignore[override]
        return self._call("max_actions")  # type: ignore[no-any-return]

    def get_state(self) -> dict[str, Any]:
        return self._call("get_state")  # type: ignore[no-any-return]

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._call("set_state", state)

    def render_text(self) -> str:
        return self._call("render_text")  # type: ignore[no-any-return]


def _forward(method: str) -> Callable[..., Any]:
    def forwarded(self: _RemoteEnv, *args: Any, **kwargs: Any) -> Any:
        return self._call(method, *args, **kwargs)

    return forwarded


def _forward_property(name: str) -> property:
    return property(lambda self: self._call(name))


def _draw(self: _RemoteEnv, state: Mapping[str, Any]) -> Drawing | None:
    return self._call("draw", dict(state))  # type: ignore[no-any-return]


def _expert_turn(self: _RemoteEnv, rng: random.Random, max_actions: int) -> Any:
    value, state = self._call("expert_turn", rng, max_actions)
    rng.setstate(state)
    return value


def _symmetries(self: _RemoteEnv) -> tuple[Symmetry, ...]:
    def image(index: int, part: str) -> Callable[[Any], Any]:
        return lambda given: self._call("image", index, part, given)

    size = self._call("symmetries")
    return tuple(Symmetry(image(i, "state"), image(i, "action")) for i in range(size))


def _vocabulary(self: _RemoteEnv) -> Iterable[str]:
    return self._call("vocabulary")  # type: ignore[no-any-return]


_SPECIAL_METHODS = dict(zip(_SPECIAL, (_draw, _expert_turn, _symmetries, _vocabulary), strict=True))
_CLASSES: dict[type, type[_RemoteEnv]] = {}


def _remote_class(kind: type[TextEnv]) -> type[_RemoteEnv]:
    """Return a class that hands on what a class of environments defines."""
    if kind not in _CLASSES:
        wanted = [each for each in _IF_DEFINED if getattr(kind, each) is not getattr(TextEnv, each)]
        methods: dict[str, Any] = {each: _forward(each) for each in (*_ALWAYS, *wanted)}
        for each, method in _SPECIAL_METHODS.items():
            if getattr(kind, each) is not getattr(TextEnv, each):
                methods[each] = method
        for each in _PROPERTIES:
            if getattr(kind, each) is not getattr(TextEnv, each):
                methods[each] = _forward_property(each)
        # Its place says that it cannot be chosen by its name, which is the environment's.
        methods["__qualname__"] = f"{_remote_class.__name__}.<locals>.{kind.__name__}"
        _CLASSES[kind] = type(kind.__name__, (_RemoteEnv,), methods)
    return _CLASSES[kind]


# --- this side of a process -----------------------------------------------------------------------


class _Worker:
    """One process and this side of its pipe; calls from several threads take turns."""

    def __init__(self, limit: float | None, reset_limit: float | None = None) -> None:
        self._limit, self._reset_limit = limit, reset_limit
        self._lock = threading.RLock()
        self._process: Any = None
        self._needs_main = False
        self._pipe: Connection | None = None
        self._here: set[int] = set()
        """Environments that the process holds."""
        self._loaded: set[bytes] = set()
        """Pickled environments whose modules it has imported."""
        self._forgotten: list[int] = []

    def call(self, number: int, prototype: bytes, calls: Sequence[Call], call: Call) -> Any:
        """Return what a method of an environment returns.

        Raises:
            RemoteError: when it raised, took too long, or ended the process.
        """
        with self._lock:
            self._needs_main = self._needs_main or b"__main__" in prototype
            pipe = self._started()
            forgotten, self._forgotten = self._forgotten, []
            self._here.difference_update(forgotten)
            history = None if number in self._here else (prototype, list(calls))
            seconds = self._seconds((call,) if history is None else (*calls, call))
            kind = "value"
            value: Any = None
            if prototype not in self._loaded:  # importing it takes its time
                kind, value = self._ask(pipe, prototype, _START_S)
            if kind == "value":
                self._loaded.add(prototype)
                message = number, history, call, forgotten, seconds
                kind, value = self._ask(pipe, message, seconds)
            if kind == "value":
                self._here.add(number)
                return value
            if kind == "error":
                text, cause = value
                raise RemoteError(text, cause)
            raise self._replace(kind, call[0])

    def _seconds(self, calls: Sequence[Call]) -> float | None:
        """Return how long some calls, one after the other, may take."""
        limits = [self._limit_of(method) for method, _, _ in calls]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if len(known) == len(limits) else None

    def _limit_of(self, method: str) -> float | None:
        has_own = method == "reset" and self._reset_limit is not None
        return self._reset_limit if has_own else self._limit

    @staticmethod
    def _ask(pipe: Connection, message: Any, seconds: float | None) -> tuple[str, Any]:
        """Return the kind of an answer and what it says."""
        try:
            pipe.send(message)
            return pipe.recv() if pipe.poll(seconds) else ("hung", None)
        except (EOFError, OSError):
            return "died", None

    def _replace(self, what: str, method: str) -> RemoteError:
        """End a process that hangs or has died, and return the error of the call."""
        process = self._process
        self.stop()
        limit = self._limit_of(method)
        if what == "hung" and limit is None:
            text = f"could not be called: its module was not imported within {_START_S:g} s"
        elif what == "hung":
            text = f"took longer than {limit:g} s (rollout.step_timeout_s): it was ended"
        else:
            text = f"ended its process (exit code {process.exitcode})"
        record_fault(FaultKind.WORKER, f"{method} {text}; another process takes its place")
        return RemoteError(text, ("worker", what, method))

    def forget(self, number: int) -> None:
        """Note that an environment is no longer needed; called by the garbage collector, which may
        interrupt any other method."""
        self._forgotten.append(number)

    def _started(self) -> Connection:
        if self._pipe is not None:
            return self._pipe
        context = multiprocessing.get_context("spawn")
        own, other = context.Pipe()
        # Not a daemon: those may not start processes, which an environment may want to.
        self._process = context.Process(target=_serve, args=(other,), name="ragen-env")
        with _START, _without_main(self._needs_main):
            self._process.start()
        other.close()
        self._pipe, self._here, self._loaded = own, set(), set()
        if not own.poll(_START_S):
            self.stop()
            raise RemoteError(f"did not start within {_START_S:g} s", ("worker", "start"))
        own.recv()
        return own

    def stop(self) -> None:
        """End the process and everything it started."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        self._here = set()
        if pipe is not None:
            pipe.close()
        if process is not None:
            _kill_group(process.pid)
            process.kill()
            process.join()


def _kill_group(pid: int) -> None:
    if hasattr(os, "killpg"):
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it has no group of its own yet
            return


_START = threading.Lock()


@contextmanager
def _without_main(needs_main: bool) -> Iterator[None]:
    """Keep a new process from running the program's main file, which may import anything, unless an
    environment is defined there."""
    main = sys.modules["__main__"]
    if not needs_main:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


# --- the other side -------------------------------------------------------------------------------


def _serve(pipe: Connection) -> None:
    """Answer calls until the other side closes the pipe."""
    if hasattr(os, "setsid"):
        os.setsid()  # a terminal's Ctrl-C is for the run, which then ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send("ready")
    envs: dict[int, _Hosted] = {}
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        value = None
        try:
            if isinstance(message, bytes):
                _set_alarm(_START_S + _GRACE_S)
                _Hosted(message, ())
            else:
                number, history, call, forgotten, seconds = message
                for each in forgotten:
                    envs.pop(each, None)
                _set_alarm(0.0 if seconds is None else seconds + _GRACE_S)
                if history is not None:
                    envs[number] = _Hosted(*history)
                value = envs[number].call(call)
            data = pickle.dumps(("value", value))
        except Exception as error:  # the boundary to user code: any error is theirs
            data = pickle.dumps(("error", (describe_fault(error), kind_of(error))))
        _set_alarm(0.0)
        pipe.send_bytes(data)


def _set_alarm(seconds: float) -> None:
    """Let the system end this process in a while, even in code that never returns to Python."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _end_with_parent() -> None:
    """End this process, and what it started, if the run is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _kill_group(os.getpid())
    os._exit(1)


class _Hosted:
    """One environment in its process."""

    def __init__(self, prototype: bytes, calls: Sequence[Call]) -> None:
        self._env: TextEnv = pickle.loads(prototype)
        self._symmetries: tuple[Symmetry, ...] = ()
        """Those of the task, once they were asked for."""
        for call in calls:
            self.call(call)

    def call(self, call: Call) -> Any:
        method, args, kwargs = call
        if method in ("instruction", "actions", "max_actions", *_PROPERTIES):
            return getattr(self._env, method)
        if method == "image":
            index, part, given = args
            # Asked for in an earlier episode, or in a process that this one replaced.
            self._symmetries = self._symmetries or tuple(self._env.symmetries())
            return getattr(self._symmetries[index], part)(given)
        value = getattr(self._env, method)(*args, **kwargs)
        if method == "expert_turn":
            return value, args[0].getstate()
        if method == "symmetries":
            self._symmetries = tuple(value)
            return len(self._symmetries)
        # A text, which is wrong, is refused where it arrives.
        is_listed = method == "vocabulary" and not isinstance(value, str)
        return list(value) if is_listed else value
