"""Memories: what the agent sees, which training sequences come of it, and exact masks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout.actors import RandomActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart, demonstration_batches
from ragen_pl.rollout.episode import ChatEpisode, play_episode
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.memory import Compact, Full, Memory, State, Window
from ragen_pl.rollout.packing import pack
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.types import Completion, EpisodeId, Request, Sampling, StopReason, Trajectory
from tests.support.lamps import NamedLamp, Stairs
from tests.support.lessons import demonstrate
from tests.support.words import vocabulary

PROMPTS = Prompts(think=False, system="{instruction} {format}", turn="{observation}")
CONFIG = RolloutConfig(
    group_size=2, max_turns=6, max_actions_per_turn=1, max_response_tokens=8, max_context=600
)
COMPACT = Compact(budget=150, request="Sum up.")
MEMORIES: list[Memory] = [Full(), Window(2), Window(3), State(), COMPACT]


class Ladder(TextEnv):
    """Go up from the seed's step as long as you like."""

    name, actions, max_actions = "ladder", ("up", "rest"), 99
    instruction = "Climb."

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.height = seed or 0
        return self.render_text(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.height += action == "up"
        return self.render_text(), 1.0, False, False, {"success": False}

    def render_text(self) -> str:
        return f"step {self.height}"

    def get_state(self) -> dict[str, Any]:
        return {"height": self.height}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.height = state["height"]


TOKENIZER = build_tokenizer([*vocabulary(PROMPTS, Ladder(), 1), *COMPACT.vocabulary()])
CHAT = Chat(PROMPTS, TOKENIZER, read_markers(TOKENIZER), 1)


class Speaker:
    """Answer at random, with and without an end, and keep what was asked and answered."""

    def __init__(self) -> None:
        self.told: dict[tuple[int, int, int], tuple[Request, Completion]] = {}

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        return [self.answer(request, sampling.max_new_tokens) for request in requests]

    def answer(self, request: Request, limit: int) -> Completion:
        episode = request.episode
        draw = torch.Generator().manual_seed(1000 * episode.member + request.number)
        text = ("up</answer>", "rest</answer>", "none")[int(torch.randint(3, (), generator=draw))]
        (ids,) = CHAT.encode([text])
        stopped = bool(torch.rand((), generator=draw) < 0.7)
        stopped = stopped and len(ids) < limit
        tokens = (*ids, CHAT.markers.end) if stopped else tuple(ids[:limit])
        found = Completion(tokens, (-0.5,) * len(tokens), (0.1,) * len(tokens), stopped)
        place = episode.group_id, episode.member, request.number
        assert place not in self.told, "noise is drawn once for each request"
        self.told[place] = request, found
        return found


def play(memory: Memory, **limits: Any) -> tuple[list[Trajectory], Speaker]:
    config, speaker = replace(CONFIG, memory=memory, **limits), Speaker()
    sampling = Sampling(1.0, config.max_response_tokens)
    starts = [GroupSeed(3, 30), GroupSeed(4, 40)]
    groups = collect(Ladder(), starts, CHAT, speaker, config, iteration=0, sampling=sampling)
    return [t for group in groups for t in group.trajectories], speaker


def text_of(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids)))


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_every_token_is_trained_where_it_was_sampled(memory: Memory) -> None:
    """The rows hold each answer once, with loss, after exactly what the sampler was given."""
    played, speaker = play(memory, max_turns=20)
    batch = pack(played, weights=[1.0, 0.5, 0.0, 1.0])
    found = 0
    for index, trajectory in enumerate(played):
        own = torch.nonzero(batch.trajectory_ids == trajectory.group_id * 4096 + trajectory.member)
        rows, number, tokens = own[:, 0].tolist(), 0, 0
        assert batch.sequence_index[rows].tolist() == list(range(len(rows)))
        assert set(batch.policy_weights[rows].tolist()) == {[1.0, 0.5, 0.0, 1.0][index]}
        for row in rows:
            ids, mask = batch.input_ids[row].tolist(), batch.loss_mask[row].tolist()
            at = mask.index(True)
            while True in mask[at:]:
                at = mask.index(True, at)
                request, answer = speaker.told[trajectory.group_id, trajectory.member, number]
                end = at + len(answer.token_ids)
                assert tuple(ids[:at]) == request.prefix_ids
                assert tuple(ids[at:end]) == answer.token_ids
                assert all(mask[at:end])
                assert batch.turn_ends[row, at:end].tolist() == [False] * (end - at - 1) + [True]
                assert batch.turn_index[row, at:end].tolist() == [number] * (end - at)
                at, number, tokens = end, number + 1, tokens + end - at
        assert batch.trajectory_tokens[rows].tolist() == [tokens] * len(rows)
        assert float(batch.rewards[rows].sum()) == pytest.approx(trajectory.total_reward, abs=1e-4)
        found += number
    assert found == len(speaker.told)
    assert bool((batch.turn_ends <= batch.loss_mask).all())


@pytest.mark.parametrize(
    ("memory", "seen"),
    [
        (Full(), [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]),
        (Window(3), [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]),
        (Window(2), [[0], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]),
        (State(), [[0], [1], [2], [3], [4], [5]]),
    ],
    ids=repr,
)
def test_what_the_agent_sees(memory: Memory, seen: list[list[int]]) -> None:
    played, speaker = play(memory)
    for trajectory in played:
        heights = [turn.observation for turn in trajectory.turns]
        for turn, visible in enumerate(seen):
            request, _ = speaker.told[trajectory.group_id, trajectory.member, turn]
            assert trajectory.prefix_ids(turn) == request.prefix_ids
            # The whole context, message by message, answers as they were sampled.
            pieces: list[Any] = []
            for place, number in enumerate(visible):
                text = heights[number]
                system = CHAT.system_text(Ladder())
                markers = CHAT.markers
                pieces += markers.later(text) if place else markers.first(system, text)
                pieces.append("<answer>")
                if number != turn:
                    answer = trajectory.turns[number].completion
                    pieces += answer.token_ids
                    pieces += () if answer.stopped else (markers.end,)
            assert CHAT.encode_parts([tuple(pieces)]) == [request.prefix_ids]


@pytest.mark.parametrize(
    ("memory", "sequences"),
    [(Full(), 1), (Window(2), 5), (Window(4), 3), (Window(9), 1), (State(), 6)],
)
def test_the_number_of_training_sequences(memory: Memory, sequences: int) -> None:
    played, _ = play(memory)
    assert {len(trajectory.sequences) for trajectory in played} == {sequences}
    assert memory.max_sequences(6) == sequences
    assert memory.cuts or sequences == 1


def test_a_window_that_nothing_leaves_is_the_whole_dialogue() -> None:
    whole, wide = play(Full())[0], play(Window(6))[0]
    assert whole == wide


# --- summaries ------------------------------------------------------------------------------------


def test_the_agent_goes_on_from_its_own_summary() -> None:
    (trajectory, *_), _ = play(COMPACT, max_turns=20)
    cuts = [turn for turn in trajectory.turns if turn.summary is not None]
    assert len(trajectory.turns) == 20
    assert len(cuts) >= 2
    assert len(trajectory.sequences) == len(cuts) + 1
    for turn in cuts:
        summary = turn.summary
        assert summary is not None
        assert turn.begins_sequence
        assert "Sum up." in text_of(summary.prompt_ids)
        assert "<answer>" not in text_of(summary.prompt_ids)
        markers, completion = CHAT.markers, summary.completion
        context = (
            *markers.first(trajectory.system, "Sum up."),
            *completion.token_ids,
            *(() if completion.stopped else (markers.end,)),
            *markers.later(turn.observation),
            "<answer>",
        )
        assert CHAT.encode_parts([context]) == [turn.prompt_ids]


@settings(max_examples=10, deadline=None)
@given(st.integers(40, 200), st.integers(4, 12))
def test_contexts_stay_within_the_budget(budget: int, response: int) -> None:
    """Games of 50 turns; where they go on, no sequence is longer, and no summary is the last word
    or follows another."""
    memory = replace(COMPACT, budget=budget)
    played, _ = play(memory, max_turns=50, max_response_tokens=response)
    for trajectory in played:
        lengths = [len(sequence.token_ids) for sequence in trajectory.sequences]
        assert all(length <= budget for length in lengths)
        assert trajectory.stop_reason in (StopReason.MAX_TURNS, StopReason.CONTEXT_FULL)
        if trajectory.stop_reason is StopReason.CONTEXT_FULL:
            assert len(trajectory.sequences) == 1, "what fits once fits again"
            assert bool(trajectory.turns) or "memory.budget is" in trajectory.error


def test_players_without_a_model_have_their_summaries_written() -> None:
    config = replace(CONFIG, memory=COMPACT, max_turns=20)
    episode = ChatEpisode(Ladder(), CHAT, config, seed=3, episode_id=EpisodeId(0, 0, 0))
    moves = play_episode(episode, RandomActor(), random.Random(0))
    turns = episode.trajectory().turns
    assert len(moves) == len(turns) == 20
    texts = [turn.summary.text for turn in turns if turn.summary is not None]
    assert texts
    assert all(text.startswith("Turns played: ") for text in texts)


def test_demonstrations_are_dealt_whole() -> None:
    """A batch has as many demonstrations as it says, in all of their sequences."""
    env, config = NamedLamp(), replace(CONFIG, memory=State(), max_turns=3)
    chat = Chat(PROMPTS, TOKENIZER, CHAT.markers, 1)
    warm = WarmStart(1, updates_per_iteration=4, batch_size=3, demonstrations=6, random_turns=0.0)
    packed = demonstrate(env, chat, config, warm, first_seed=0)
    assert len(packed) > 6
    ids = packed.demonstration_ids
    for first, second in zip(
        *[iter(demonstration_batches(packed, warm, iteration=0, seed=0))] * 2, strict=True
    ):
        rows = len(first) + len(second)
        assert rows == len(packed), "two batches are a pass over all six"
        assert int(first.loss_mask.sum() + second.loss_mask.sum()) == int(packed.loss_mask.sum())
    assert len(torch.unique(ids)) == 6


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(1), r"memory.turns is 1; a Window shows at least 2"),
        (lambda: Compact(budget=0), r"memory.budget is 0; it must be at least 1"),
        (lambda: Compact(request=" "), r"memory.request is empty"),
        (
            lambda: RolloutConfig(memory=Compact(budget=2000), max_context=1024),
            r"memory.budget is 2000, but rollout.max_context is 1024",
        ),
        (
            lambda: RolloutConfig(memory=Compact(budget=96), max_response_tokens=32),
            r"rollout.memory.budget is 96, but rollout.memory is Compact, .* well above 96",
        ),
        (
            lambda: RolloutConfig(memory=Compact(), max_context=200, max_response_tokens=100),
            r"rollout.max_context is 200, but rollout.memory is Compact, .* well above 300",
        ),
        (
            lambda: HindsightImitation().check(
                Stairs(), replace(CONFIG, memory=COMPACT), think=True
            ),
            r"rollout.memory is Compact, but a rewritten solution has no summaries",
        ),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_sampled_solutions_keep_their_summaries() -> None:
    config = replace(CONFIG, memory=COMPACT)
    HindsightImitation(rewrite=False).check(Stairs(), config, think=True)
    HindsightImitation().check(Bandit(), replace(CONFIG, memory=State()), think=True)
