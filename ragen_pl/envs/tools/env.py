"""``ToolEnv``: an environment whose typed public methods are tools."""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from numbers import Real
from typing import Any

from ragen_pl.envs.replay import ReplayState
from ragen_pl.envs.tools.calls import Call, CallForm, WrongCallError, read_call, written
from ragen_pl.envs.tools.schema import (
    ToolSchema,
    is_cached,
    own_methods,
    sample_arguments,
    schema_of,
)
from ragen_pl.envs.tools.toolbox import Toolbox, ToolUnavailableError
from ragen_pl.errors import ConfigError

_LONGEST_REASON = 300
_SLIPS = (TypeError, AttributeError, NameError)
"""What a tool raises for a slip in its own code, whose arguments were checked."""
_KEPT = ("earn", "end", "play", "written")
"""Methods of ``ToolEnv`` that no subclass defines anew."""


class ToolEnv(ReplayState):
    """An environment in which every action calls a tool, and observations are the results.

    The tools are the public methods that a subclass defines, in their order, and those of its
    ``toolboxes``. A method's signature and docstring are what the agent is told; its return value
    is the observation. It may call ``earn`` and ``end``. A wrong call, or one that raises, earns
    nothing and is answered with the reason; but a TypeError, an AttributeError or a NameError in a
    method whose arguments have the right types is its own slip, and fails as one in ``step`` does.
    A method that keeps its results, as under ``functools.cache``, is refused.

    A subclass sets ``name`` and ``instruction`` and implements ``begin`` and ``task``. Its methods
    must be deterministic: states are restored by playing the moves again. What another
    ``Toolbox`` that is not repeatable returned is a part of the state, and not called again. Starts
    of one text are one task: a subclass that hides an answer adds it to ``start_key``.
    """

    actions: tuple[str, ...] | None = None
    max_actions = 10
    toolboxes: tuple[Toolbox, ...] = ()
    """Further tools."""
    calls: CallForm = "json"
    """The form in which the prompt asks for calls, and experts write them."""
    repeats_task = True
    """Whether every observation has the task; otherwise the first one alone."""
    longest_result = 4000
    """Maximum characters of a result; the rest is cut off."""

    _result: str | None = None
    _outcome: tuple[float, bool, bool] = (0.0, False, False)
    """Reward of the current call, whether it ends the episode, whether as a success."""
    _results: tuple[tuple[bool, str], ...] = ()
    """What toolboxes that are not repeatable have returned, and whether it is a failure."""
    _recorded: tuple[tuple[bool, str], ...] = ()
    """Such results that are still to be played again."""

    @property
    @abstractmethod
    def task(self) -> str:
        """The task of this episode, which the first observation shows."""

    def earn(self, reward: float) -> None:
        """Add to the reward of the current call.

        Raises:
            TypeError: if it is no number.
        """
        if isinstance(reward, bool) or not isinstance(reward, Real):
            raise TypeError(f"a tool earned {reward!r}, a {type(reward).__name__}: give a number")
        earned, ends, success = self._outcome
        self._outcome = (earned + reward, ends, success)

    def end(self, reward: float, *, success: bool) -> None:
        """End the episode after the current call."""
        self.earn(reward)
        self._outcome = (self._outcome[0], True, success)

    @property
    def schemas(self) -> Mapping[str, ToolSchema]:
        """The tools by name.

        Raises:
            ValueError: if two have one name, or a public method cannot be a tool.
        """
        found: dict[str, ToolSchema] = {}
        own = _own_schemas(type(self))  # type: ignore[arg-type]  # a class can be hashed
        offered = (own, *(box.schemas() for box in self.toolboxes))
        for schema in (each for schemas in offered for each in schemas):
            if schema.name in found:
                raise ValueError(f"tools: {type(self).__name__} has two named {schema.name}")
            found[schema.name] = schema
        return found

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """The schemas of the tools, as chat templates take them."""
        return tuple(schema.as_function() for schema in self.schemas.values())

    @property
    def actions_text(self) -> str:
        """The form of a call, and the tools."""
        schemas = self.schemas
        listed = [json.dumps(schema.as_function()["function"]) for schema in schemas.values()]
        if self.calls == "brackets" and all(schema.only_text for schema in schemas.values()):
            forms = (f"{name}[{schema.only_text}]" for name, schema in schemas.items())
            listed = [
                f"{form}: {schema.description}"
                for form, schema in zip(forms, schemas.values(), strict=True)
            ]
            return "\n".join(("one call of a tool", *listed))
        form = '{"name": "tool", "arguments": {"argument": "value"}}'
        return "\n".join((f"one call of a tool, as {form}", *listed))

    def written(self, name: str, /, **arguments: Any) -> str:
        """Return a call as an agent would write it."""
        return written(Call(name, arguments), self.schemas[name], self.calls)

    def sample_actions(self) -> tuple[str, ...]:
        """Call every method that is a tool once, with arguments of the right types."""
        own = _own_schemas(type(self))  # type: ignore[arg-type]  # a class can be hashed
        return tuple(self.written(schema.name, **sample_arguments(schema)) for schema in own)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin the task that the seed decides."""
        self._results = self._recorded = ()
        self._result = None
        return super().reset(seed=seed, options=options)

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Carry out a call; its result is the next observation.

        ``info`` says whether the call was wrong, and the name of the exception that it raised.
        """
        self._outcome = (0.0, False, False)
        wrong, raised = False, ""
        try:
            result = self._carry_out(read_call(action, self.schemas))
        except WrongCallError as error:
            self._outcome = (0.0, False, False)
            result, wrong = f"Error: {error}", True
            raised = "" if error.__cause__ is None else type(error.__cause__).__name__
        if len(result) > self.longest_result:
            result = f"{result[: self.longest_result]} …"
        self._result = result.encode(errors="replace").decode()  # halves of surrogate pairs
        reward, ends, success = self._outcome
        info = {"success": success, "wrong_call": wrong, "raised": raised}
        return reward, ends, False, info

    def _carry_out(self, call: Call) -> str:
        """Return the result of a call.

        Raises:
            WrongCallError: if the tool raised.
            ToolUnavailableError: if it cannot be reached.
        """
        box = next((box for box in self.toolboxes if call.name in names_of(box)), None)
        if box is None:
            own = getattr(self, call.name)
            return _told(lambda: str(own(**call.arguments)), call.name, _SLIPS)
        if box.is_repeatable:
            return _told(lambda: box.call(call.name, call.arguments), call.name)
        return self._from_record(box, call)

    def _from_record(self, box: Toolbox, call: Call) -> str:
        """Return the result of a call that is not repeated, from the state that is restored."""
        if self._recorded:
            (failed, text), *rest = self._recorded
            self._recorded = tuple(rest)
        else:
            try:
                failed, text = False, _told(lambda: box.call(call.name, call.arguments), call.name)
            except WrongCallError as error:
                failed, text = True, str(error)
            text = text[: self.longest_result + 1]
        self._results = (*self._results, (failed, text))
        if failed:
            raise WrongCallError(text)
        return text

    def render_text(self) -> str:
        """Return the task and the result of the last call."""
        if self._result is None:
            return self.task
        return f"{self.task}\n{self._result}" if self.repeats_task else self._result

    def get_state(self) -> dict[str, Any]:
        """Return the seeds, the moves, and the results that cannot be repeated."""
        return {**super().get_state(), "results": [list(each) for each in self._results]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Play the moves of a state again, with the results that it holds."""
        self._result, self._results = None, ()
        self._recorded = tuple((bool(failed), str(text)) for failed, text in state["results"])
        try:
            super().set_state(state)
        finally:  # a later call must not be answered from these
            self._recorded = ()

    def vocabulary(self) -> Iterator[str]:
        """List the lines of the instruction and of the tools, and the texts around arguments."""
        for text in (self.instruction, self.actions_text):
            yield from text.splitlines(keepends=True)
        for name, schema in self.schemas.items():
            if self.calls == "brackets" and schema.only_text:
                yield from (f"{name}[", "]")
            else:
                yield from (f'{{"name": "{name}", "arguments": {{', '"}}', "}}")
                yield from (
                    f'"{argument}": ' for argument in schema.parameters.get("properties", {})
                )


def names_of(box: Toolbox) -> tuple[str, ...]:
    """Return the names of a toolbox's tools."""
    return tuple(schema.name for schema in box.schemas())


def _told(run: Callable[[], str], name: str, slips: tuple[type[Exception], ...] = ()) -> str:
    """Return what a tool returns.

    Args:
        run: Function that calls it.
        name: Its name.
        slips: Exceptions that no arguments explain; they are left as they are.

    Raises:
        WrongCallError: if it raised; the message tells the agent.
        ToolUnavailableError: if it cannot be reached.
        ConfigError: if what it needs is not installed.
    """
    try:
        return run()
    except (ToolUnavailableError, ConfigError):
        raise
    except slips:
        raise
    except Exception as error:  # the boundary to tools: an agent's arguments may be anything
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise WrongCallError(f"{name} failed: {reason[:_LONGEST_REASON]}") from error


@lru_cache(maxsize=64)
def _own_schemas(kind: type[ToolEnv]) -> tuple[ToolSchema, ...]:
    for name, own in inspect.getmembers(kind, inspect.isfunction):
        inherited = getattr(ToolEnv, name, None)
        if name.startswith("_") or own is inherited or not inspect.isfunction(inherited):
            continue
        if name in _KEPT or not _overrides(own, inherited):
            remedy = "give it another one"
            if name not in _KEPT:
                remedy += ", or, if it stands for that method, the same arguments and result"
            raise ValueError(
                f"tools: {kind.__name__}.{name} would be a tool, but has the name of a method of "
                f"ToolEnv, {name}{inspect.signature(inherited)}: {remedy}"
            )
    methods = list(own_methods(kind, ToolEnv))
    for method in methods:
        if is_cached(method):
            raise ValueError(
                f"tools: {kind.__name__}.{method.__name__} keeps its results (functools.cache), so "
                "that an equal call is not carried out again: what it earns, ends and changes "
                "would be left out, in later episodes too. Decorate a function without self "
                "instead, and call it"
            )
    return tuple(map(schema_of, methods))


def _overrides(own: Callable[..., Any], inherited: Callable[..., Any]) -> bool:
    """Return whether a method has the arguments of the inherited one, and returns no text where
    that one does not, as a tool would."""
    mine, its = inspect.signature(own), inspect.signature(inherited)
    returns_text = [each.return_annotation in (str, "str") for each in (mine, its)]
    return [*mine.parameters] == [*its.parameters] and returns_text != [True, False]
