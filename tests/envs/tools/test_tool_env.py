"""An environment of a few lines whose methods are tools, and everything an agent may do to it."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.tools.env import ToolEnv
from ragen_pl.envs.tools.toolbox import Toolbox, ToolUnavailableError

COUNT = itertools.count()


class Oracle(Toolbox):
    """Answers that never come twice."""

    is_repeatable = False

    def ask(self, question: str) -> str:
        """Ask the oracle.

        Args:
            question: Anything.
        """
        if question == "fail":
            raise RuntimeError(f"for the {next(COUNT)}th time")
        if question == "gone":
            raise ToolUnavailableError("the oracle is not at home")
        return f"{question} {next(COUNT)}"


class Vault(ToolEnv):
    """A vault that opens at one digit."""

    name = "vault"
    instruction = "Open the vault."
    max_actions = 4
    toolboxes: tuple[Toolbox, ...] = (Oracle(),)

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        self._digit, self._tried = seed % 10, list[int]()
        return {"difficulty": "one"}

    @property
    def task(self) -> str:
        return f"A vault. Hint: {self._digit // 5}"

    def turn(self, digit: int) -> str:
        """Turn the dial.

        Args:
            digit: From 0 to 9.
        """
        self._tried.append(digit)
        if digit > 9:
            self.earn(-0.5)
            raise IndexError(f"{digit} is not on the dial")
        if digit == self._digit:
            self.end(1.0, success=True)
            return "It opens."
        self.earn(0.1)
        return f"Tried {self._tried}."


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def begun(seed: int = 3) -> Vault:
    env = Vault()
    env.reset(seed=seed)
    return env


def test_the_contract_holds() -> None:
    check_contract(Vault(), "env")


def test_methods_and_toolboxes_become_tools() -> None:
    names = [tool["function"]["name"] for tool in Vault().tools]
    assert names == ["turn", "ask"]
    assert '"name": "turn"' in Vault().actions_text
    assert "Ask the oracle." in Vault().actions_text


def test_results_are_observations_and_rewards_are_earned() -> None:
    env = begun()
    assert env.render_text() == "A vault. Hint: 0"
    text, reward, terminated, truncated, info = env.step(call("turn", digit=4))
    assert text == "A vault. Hint: 0\nTried [4]."
    assert (reward, terminated, truncated) == (0.1, False, False)
    assert info == {"success": False, "wrong_call": False, "raised": ""}
    text, reward, terminated, _, info = env.step(call("turn", digit=3))
    assert (text, reward, terminated) == ("A vault. Hint: 0\nIt opens.", 1.0, True)
    assert info["success"]


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("open it", "the call is no JSON"),
        (call("open"), "there is no tool 'open'; there are turn, ask"),
        (call("begin", seed=3, noise_seed=1), "there is no tool 'begin'"),
        (call("end", reward=9.0, success=True), "there is no tool 'end'"),
        (call("_carry_out", call=1), "there is no tool '_carry_out'"),
        (call("turn"), "turn takes digit; digit is missing"),
        (call("turn", digit="3"), "digit of turn is '3'; it must be an integer"),
        (call("ask", question="fail"), "ask failed: RuntimeError: for the"),
    ],
)
def test_a_wrong_call_is_answered_and_earns_nothing(action: str, reason: str) -> None:
    env = begun()
    text, reward, terminated, truncated, info = env.step(action)
    assert reason in text
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "wrong_call": True, "raised": ""}
    assert env.step(call("turn", digit=3))[1] == 1.0


def test_what_a_tool_raises_is_answered_named_and_earns_nothing() -> None:
    env = begun()
    text, reward, terminated, truncated, info = env.step(call("turn", digit=12))
    assert text.endswith("Error: turn failed: IndexError: 12 is not on the dial")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "wrong_call": True, "raised": "IndexError"}


def test_a_tool_that_cannot_be_reached_is_no_observation() -> None:
    env = begun()
    with pytest.raises(ToolUnavailableError, match="the oracle is not at home"):
        env.step(call("ask", question="gone"))
    assert env.moves == ()


def test_what_cannot_be_repeated_is_a_part_of_the_state() -> None:
    env = begun()
    for action in (call("ask", question="why"), call("ask", question="fail")):
        text = env.step(action)[0]
    state = json.loads(json.dumps(env.get_state()))
    other = begun(8)
    other.set_state(state)
    assert other.render_text() == text
    assert other.get_state() == state
    fresh = other.step(call("ask", question="why"))[0]
    assert fresh not in (text, state["results"][0][1])
    other.set_state(begun().get_state())
    assert other.render_text() == "A vault. Hint: 0"
    with pytest.raises(TypeError):  # what is no text is no move
        other.set_state({**state, "moves": [*state["moves"], None]})
    assert other._recorded == (), "what was recorded must not answer a later call"


def test_results_are_cut_and_can_be_encoded() -> None:
    env = begun()
    env.longest_result = 50
    assert len(env.step(call("ask", question="x" * 9000))[0]) < 80
    text = env.step('{"name": "ask", "arguments": {"question": "\\ud800"}}')[0]
    assert text.encode()


def test_the_task_may_be_shown_once() -> None:
    env = begun()
    env.repeats_task = False
    assert env.step(call("turn", digit=1))[0] == "Tried [1]."


def test_copies_go_on_alone() -> None:
    env = begun()
    twin, third = copy.deepcopy(env), pickle.loads(pickle.dumps(env))
    env.step(call("turn", digit=1))
    assert twin.step(call("turn", digit=2))[0].endswith("Tried [2].")
    assert third.step(call("turn", digit=3))[2]


def test_two_tools_of_one_name_are_refused() -> None:
    class Twice(Vault):
        toolboxes = (Oracle(), Oracle())

    with pytest.raises(ValueError, match="tools: Twice has two named ask"):
        _ = Twice().actions_text


def test_a_public_method_that_cannot_be_a_tool_is_refused() -> None:
    class Helper(Vault):
        def help(self, word):  # type: ignore[no-untyped-def]
            """Help."""

    with pytest.raises(ValueError, match=r"Helper.help, a tool since its name does not begin with"):
        _ = Helper().tools


def _logged(method: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> str:
        return method(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    "decorate",
    [
        functools.cache,
        functools.lru_cache(maxsize=2),
        lambda method: _logged(functools.cache(method)),
        lambda method: functools.cache(_logged(method)),
    ],
)
def test_a_method_that_keeps_its_results_is_refused(decorate: Any) -> None:
    """An equal call would silently earn and end nothing."""

    class Kept(Vault):
        @decorate  # type: ignore[untyped-decorator]
        def push(self, force: int) -> str:
            """Push the door."""
            self.earn(1.0)
            return "pushed"

    with pytest.raises(ValueError, match=r"tools: Kept\.push keeps its results .* without self"):
        check_contract(Kept(), "env")


class Slip(Vault):
    """A vault with slips in its own code.

    Args:
        slip: Which.
    """

    def __init__(self, slip: str) -> None:
        super().__init__()
        self.slip = slip

    def push(self, force: int, hands: list[str], how: Literal["hard", "soft"]) -> str:
        """Push the door."""
        if self.slip == "earns a text":
            self.earn("0.25")  # type: ignore[arg-type]
        if self.slip == "earns nothing":
            self.earn(None)  # type: ignore[arg-type]
        if self.slip == "attribute":
            return str(self._tires)  # type: ignore[attr-defined]
        return f"{force} {len(hands)} {how}"


@pytest.mark.parametrize("slip", ["earns a text", "earns nothing", "attribute"])
def test_a_tools_own_slip_is_no_answer_to_the_agent(slip: str) -> None:
    """It would be imitated, and no check or count of faults would tell."""
    env = Slip(slip)
    env.reset(seed=3)
    with pytest.raises((TypeError, AttributeError)):
        env.step(call("push", force=1, hands=["x"], how="hard"))
    with pytest.raises(ValueError, match=r"push"):
        check_contract(Slip(slip), "env")


def test_the_contract_calls_every_tool_with_arguments_of_its_types() -> None:
    assert Slip("").sample_actions() == (
        call("turn", digit=1),
        call("push", force=1, hands=["x"], how="hard"),
    )
    check_contract(Slip(""), "env")

    class Drawn(Vault):
        def draw_lots(self) -> str:
            """Draw lots."""
            return str(next(COUNT))

    with pytest.raises(ValueError, match=r"draw_lots.*the two must be equal"):
        check_contract(Drawn(), "env")


def test_an_argument_may_be_called_name() -> None:
    class Book(Vault):
        def phone_of(self, name: str) -> str:
            """Look a number up."""
            return f"{name}: 555"

    wanted = {"name": "phone_of", "arguments": {"name": "x"}}
    assert json.dumps(wanted) in Book().sample_actions()
    check_contract(Book(), "env")


def test_tools_that_wait_or_take_a_name_of_the_base_are_refused() -> None:
    class Waiting(Vault):
        async def push(self) -> str:
            """Push the door."""
            return ""

    class Ending(Vault):
        def end(self) -> str:  # type: ignore[override]
            """Give up."""
            return ""

    class Dealing(Vault):
        def draw(self, count: int) -> str:  # type: ignore[override]
            """Draw cards."""
            return ""

    class Closing(Vault):
        def close(self) -> str:  # type: ignore[override]
            """Close the door."""
            return ""

    with pytest.raises(ValueError, match=r"Waiting.push, a tool .* is async"):
        _ = Waiting().tools
    for kind in (Dealing, Closing):
        with pytest.raises(ValueError, match=r"(draw|close) would .* name of .*the same arg"):
            _ = kind().tools
    with pytest.raises(ValueError, match=r"Ending.end would be a tool, but has the name of a meth"):
        _ = Ending().tools


def test_brackets_are_asked_for_where_all_tools_take_one_text() -> None:
    class Asking(ToolEnv):
        name, instruction, task, calls = "asking", "Ask.", "Why?", "brackets"
        toolboxes = (Oracle(),)

        def begin(self, seed: int, noise_seed: int) -> Mapping[str, Any]:  # type: ignore[override]
            return {}

    env = Asking()
    assert env.actions_text == "one call of a tool\nask[question]: Ask the oracle."
    assert env.written("ask", question="so") == "ask[so]"


@given(
    st.lists(st.text() | st.sampled_from([call("turn", digit=1), "ask[]", "turn[1]"]), max_size=4)
)
def test_any_actions_can_be_played_and_restored(actions: list[str]) -> None:
    env, other = begun(), begun(1)
    for action in actions:
        _, _, terminated, truncated, info = env.step(action)
        assert not terminated
        assert not info["success"]
        if truncated:
            break
    other.set_state(json.loads(json.dumps(env.get_state())))
    assert other.render_text() == env.render_text()
