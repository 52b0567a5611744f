"""Classes for TRL's ``environment_factory``, by the rules that TRL applies to them."""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
from typing import Any, Literal, get_type_hints

import pytest
from transformers.utils.chat_template_utils import get_json_schema

from ragen_pl.envs import Bandit, FrozenLake, Sokoban, Sudoku
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.outward import TRLEnvironment, seed_rows, trl_environment
from ragen_pl.envs.tools import Calculator, ToolEnv
from tests.support.faulty import FaultyLamp
from tests.support.lamps import Lamp


class Talker(Lamp):
    """A lamp that takes any text."""

    actions = None  # type: ignore[assignment]


def tools(factory: type[TRLEnvironment]) -> list[str]:
    """List the methods that TRL makes tools of, as its trainer finds them."""
    found = [name for name, _ in inspect.getmembers(factory, predicate=inspect.isfunction)]
    return [n for n in found if not n.startswith("_") and n not in ("reset", "get_reward")]


@pytest.mark.parametrize("env", [Sokoban(), Bandit(), Sudoku(), Talker()])
def test_the_only_tool_has_a_schema(env: TextEnv) -> None:
    factory = trl_environment(env)
    assert tools(factory) == ["act"]
    schema = get_json_schema(factory().act)["function"]
    assert schema["name"] == "act"
    assert schema["description"]
    assert schema["parameters"]["required"] == ["action"]
    assert schema["parameters"]["properties"]["action"]["description"]
    assert get_type_hints(factory.act)["return"] is str


def test_the_schema_names_the_actions_where_they_are_fixed_and_few() -> None:
    def choices(env: TextEnv) -> Any:
        schema = get_json_schema(trl_environment(env)().act)["function"]
        return schema["parameters"]["properties"]["action"].get("enum")

    assert choices(Sokoban()) == ["Up", "Down", "Left", "Right"]
    assert choices(Bandit("named")) is None  # the start decides the names
    assert choices(Sudoku()) is None  # too many
    assert choices(Talker()) is None


def test_an_episode_by_calls() -> None:
    env = Sokoban()
    text, _ = env.reset(seed=4, options={"noise_seed": 0})
    played = trl_environment(Sokoban())()
    assert played.get_reward() == 0.0
    told = played.reset(prompt=[], seed=4)
    assert told.startswith(env.instruction)
    assert told.endswith(text)
    assert "Actions: Up, Down, Left, Right" in told
    total = 0.0
    for action in ("Up", "Left", "down"):
        text, reward, *_ = env.step(action.capitalize())
        assert played.act(action) == text
        total += reward
    assert played.get_reward() == pytest.approx(total)
    assert "is no action" in played.act("fly")
    assert "is no action" in played.act(None)  # type: ignore[arg-type]  # a model's call
    assert played.get_reward() == pytest.approx(total)


def test_the_end_is_told_and_pays_nothing_more() -> None:
    played = trl_environment(Sokoban(max_actions=1))()
    played.reset(seed=4)
    assert played.act("Up").endswith("The episode has ended.")
    reward = played.get_reward()
    assert [played.act("Up") for _ in range(3)] == ["The episode has ended."] * 3
    assert played.get_reward() == reward
    assert not played.reset(seed=5).endswith("ended.")
    assert played.get_reward() == 0.0


def test_a_success_is_told() -> None:
    env = FrozenLake(intended=1.0)
    env.reset(seed=0)
    played = trl_environment(FrozenLake(intended=1.0))()
    played.reset(seed=0)
    told = ""
    for action in env.expert_turn(random.Random(0), env.max_actions)[1]:
        told = played.act(action)
    assert told.endswith("The episode has ended. It is a success.")
    assert played.get_reward() == 1.0


def test_members_of_a_group_share_their_start_and_not_their_chances() -> None:
    factory = trl_environment(Lamp())
    members = [factory() for _ in range(12)]
    assert len({each.reset(seed=3) for each in members}) == 1
    for each in members:
        for _ in range(3):
            each.act("on")
    assert len({each.get_reward() for each in members}) > 1


def rewards(factory: type[TRLEnvironment]) -> list[float | None]:
    found = []
    for played in [factory() for _ in range(8)]:
        for _ in range(3):
            played.reset(seed=3)
            played.act("on")
            found.append(played.get_reward())
    return found


def test_chances_repeat_if_the_training_is_repeated_and_differ_between_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = rewards(trl_environment(Lamp()))
    assert rewards(trl_environment(Lamp())) == first
    monkeypatch.setenv("RANK", "1")
    assert rewards(trl_environment(Lamp())) != first


def test_instances_know_nothing_of_each_other() -> None:
    factory = trl_environment(Sokoban())
    one, other = factory(), factory()
    one.reset(seed=1)
    other.reset(seed=2)
    one.act("Up")
    assert (one.get_reward(), other.get_reward()) == (-0.1, 0.0)


def test_a_row_without_a_seed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"without a seed .it has prompt.: give the dataset"):
        trl_environment(Sokoban())().reset(prompt="x")
    rows = seed_rows(range(2))
    assert rows == [{"prompt": [{"role": "user", "content": ""}], "seed": s} for s in (0, 1)]
    assert trl_environment(Sokoban())().reset(**rows[1])


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_fault_of_the_environment_has_no_reward(method: str) -> None:
    played = trl_environment(FaultyLamp(method, ZeroDivisionError("ouch")))()
    told = played.reset(seed=1)
    if method == "step":
        told = played.act("on")
    assert told == "The environment failed. The episode has ended."
    assert played.get_reward() is None
    assert played.act("on") == "The episode has ended."
    assert played.get_reward() is None
    played.reset(seed=2)
    assert played.get_reward() == 0.0


class Counter(ToolEnv):
    """Count to three."""

    name, instruction, task, max_actions = "counter", "Count.", "Count to three.", 6
    toolboxes = (Calculator(),)

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        self._left = 3
        return {}

    def count(
        self,
        by: int,
        how: Literal["up", "down"] = "up",
        names: list[str] | None = None,
        loudly: bool = False,
    ) -> str:
        """Count on.

        Args:
            by: Steps.
            how: Direction.
            names: What is counted.
        """
        self._left -= by if how == "up" else -by
        if not self._left:
            self.end(1.0, success=True)
        return f"{self._left} {names} {loudly}"


def test_tools_of_an_environment_are_the_classs_own() -> None:
    factory = trl_environment(Counter())
    assert tools(factory) == ["calculate", "count"]
    played = factory()
    for tool in Counter().tools:
        told = get_json_schema(getattr(played, tool["function"]["name"]))["function"]
        wanted = dict(tool["function"])
        assert told.pop("return")["type"] == "string"
        assert told["description"] == wanted["description"]
        mine, its = told["parameters"], wanted["parameters"]
        assert mine.get("required", []) == its["required"]
        assert mine["properties"].keys() == its["properties"].keys()
    assert get_json_schema(factory().count)["function"]["parameters"]["properties"]["how"][  # type: ignore[attr-defined]
        "enum"
    ] == ["up", "down"]
    text = played.reset(seed=1)
    assert "Call one tool at a time, at most 6 times.\nCount to three." in text
    assert '{"name"' not in text
    assert played.calculate(expression="1 + 1") == "Count to three.\n2"  # type: ignore[attr-defined]
    call: Any = played.count  # type: ignore[attr-defined]
    assert call(by=1, names=["a"]) == "Count to three.\n2 ['a'] False"
    assert "Error: by of count is 'one'; it must be an integer" in call(by="one")
    assert "Error:" in call()
    assert call(by=2).endswith("The episode has ended. It is a success.")
    assert played.get_reward() == 1.0


def test_a_tool_with_the_name_of_a_method_of_trls_is_refused() -> None:
    class Restarting(Counter):
        def get_reward(self) -> str:
            """Ask for a reward."""
            return "no"

    with pytest.raises(ValueError, match=r"Restarting has a tool named get_reward.* rename the"):
        trl_environment(Restarting())


def test_names_of_classes() -> None:
    assert trl_environment(Sokoban()).__name__ == "SokobanEnvironment"
    assert trl_environment(FrozenLake()).__name__ == "FrozenLakeEnvironment"
    assert trl_environment(Sokoban(), "Boxes").__name__ == "Boxes"


def test_trl_is_not_imported() -> None:
    program = "import sys, ragen_pl.envs.outward; print({'trl', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
