"""Reward terms in played episodes: what they are given, what is recorded, whose fault is whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.rewards import Format, Grounding, PlayedTurn, RewardTerm, Truth
from ragen_pl.types import Completion, Request, Sampling, StopReason, Trajectory
from tests.support.toy_env import PROMPTS, WORDS, NamedLamp

TOKENIZER = build_tokenizer(list(WORDS))
CONFIG = RolloutConfig(
    group_size=1, max_turns=2, max_actions_per_turn=1, max_response_tokens=40, max_context=256
)


class Still(NamedLamp):
    """A lamp whose episodes last as long as they may, and that counts how often it is read."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.lit = action == "on"
        return self.render_text(), 1.0, False, False, {"success": False}

    def get_state(self) -> dict[str, Any]:
        self.reads.append("state")
        return super().get_state()

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float:
        self.reads.append("grounding")
        return super().thought_grounding(thought, actions)

    def __deepcopy__(self, memo: dict[int, Any]) -> Still:
        return self  # one trajectory: let the test see its reads


@dataclass(frozen=True)
class Seen(RewardTerm):
    """Keep what it is given."""

    needs_states: ClassVar[bool] = True
    seen: list[PlayedTurn] = field(default_factory=list)

    def __call__(self, turn: PlayedTurn) -> float | None:
        self.seen.append(turn)
        return 0.25 if turn.number else None


@dataclass(frozen=True)
class Broken(RewardTerm):
    def __call__(self, turn: PlayedTurn) -> float:
        return 1.0 / len(turn.actions[:0])


def play(
    rewards: Mapping[str, RewardTerm | None],
    answers: Sequence[str],
    env: NamedLamp | None = None,
    think: bool = True,
) -> Trajectory:
    chat = Chat(replace(PROMPTS, think=think), TOKENIZER, read_markers(TOKENIZER), 1)
    texts = iter(answers)

    def generate(requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        (ids,) = chat.encode([next(texts)])
        tokens = (*ids, chat.markers.end)
        return [Completion(tokens, (0.0,) * len(tokens), None, stopped=True) for _ in requests]

    config = replace(CONFIG, rewards=dict(rewards))
    (group,) = collect(
        env or Still(),
        [GroupSeed(0, 1)],
        chat,
        generate,
        config,
        iteration=0,
        sampling=Sampling(1.0, 40),
    )
    return group.trajectories[0]


def said(thought: str, action: str) -> str:
    return f"{thought}</think><answer>{action}</answer>"


def test_a_term_sees_the_turn_and_the_states_around_it() -> None:
    term = Seen()
    trajectory = play({"mine": term}, [said("dark", "off"), said("dark!", "on")])
    first, second = term.seen
    assert (first.number, first.thought, first.actions) == (0, "dark", ("off",))
    assert (first.observation, first.next_observation) == ("lit", "dark")
    assert (first.state, first.next_state) == (
        {"lit": True, "is_over": False},
        {"lit": False, "is_over": False},
    )
    assert (first.env_reward, first.is_valid, first.thought_correct) == (1.0, True, False)
    assert (second.state, second.thought_grounding) == (first.next_state, None)
    assert first.num_tokens == len(trajectory.turns[0].completion.token_ids)
    assert [turn.rewards for turn in trajectory.turns] == [{"env": 1.0}, {"env": 1.0, "mine": 0.25}]


def test_thoughts_are_graded_before_the_actions_with_the_actions() -> None:
    rewards = {"format": Format(), "truth": Truth(-0.5), "grounding": Grounding(0.4)}
    answers = [said("lit", "off"), said("dark", "on")]
    trajectory = play(rewards, answers)
    assert [turn.thought_grounding for turn in trajectory.turns] == [1.0, 0.5]
    assert trajectory.turns[1].rewards["grounding"] == pytest.approx(-0.2)
    assert [turn.thought_reward for turn in trajectory.turns] == pytest.approx([0.0, -0.2])
    untrue = play(rewards, [said("dark", "off"), said("lit", "off")])
    assert [turn.thought_reward for turn in untrue.turns] == pytest.approx([-0.7, -0.7])
    silent = play({"format": Format(), "grounding": Grounding()}, ["<answer>on"] * 2, think=False)
    assert [turn.thought_grounding for turn in silent.turns] == [None, None]
    assert [turn.thought_reward for turn in silent.turns] == [0.0, 0.0]


def test_what_no_term_asks_for_is_not_computed() -> None:
    plain, stated = Still(), Still()
    answers = [said("lit", "off"), said("dark", "on")]
    play({"format": Format()}, answers, plain)
    play({"mine": Seen()}, answers, stated)
    assert "grounding" not in plain.reads
    assert stated.reads.count("state") == plain.reads.count("state") + 4


def test_an_error_in_a_term_is_not_the_environments() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.mine \(Broken\) raised ZeroDivisionError"):
        play({"mine": Broken()}, [said("lit", "on")])
    assert play({}, [said("lit", "on")] * 2).stop_reason is StopReason.MAX_TURNS
