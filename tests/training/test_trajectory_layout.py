"""Trajectories of several training sequences: credit flows across the cuts, exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ragen_pl.algorithms.config import Algorithm, EntropyBonus, EnvAlgorithm, ThoughtAdvantage
from ragen_pl.algorithms.estimators import (
    GAE,
    GRPO,
    RLOO,
    AdvantageEstimator,
    BiLevelGAE,
    DrGRPO,
    ReinforcePlusPlus,
    Success,
)
from ragen_pl.algorithms.policy_losses import GSPO, Clip, LogLikelihood
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.ops.losses import Aggregation
from ragen_pl.rollout.packing import pack
from ragen_pl.training.collector import scaled_by_env
from ragen_pl.training.scoring import ForwardPasses
from ragen_pl.training.trajectory_layout import TrajectoryLayout
from ragen_pl.training.update import compute_advantages
from ragen_pl.types import Completion, RolloutBatch, Summary, TrainingBatch, Trajectory, Turn
from tests.support import toy_worlds as worlds
from tests.support.algorithms import ESTIMATORS
from tests.support.doubles import make_trajectory, make_turn
from tests.support.tiny_networks import make_critic, make_policy, make_update

PASSES = ForwardPasses(10**6, torch.device("cpu"))


# --- the gradient of an enumerated policy ---------------------------------------------------------

SPOKEN = 3
"""Words that are ever said; the policy gives the others no probability worth the name."""
REWARDS = torch.rand(3, SPOKEN, SPOKEN, generator=torch.Generator().manual_seed(0))
"""Of turn t, by what was said in it and in the first turn."""
Context = tuple[int, ...]
Told = tuple[list[Turn], list[Context]]
"""The turns that some words make, and what the agent saw before each of the words."""


def _said(word: int) -> Completion:
    return Completion((word,), (0.0,), (0.0,), stopped=True)


def _turn(number: int, words: Sequence[int], prompt: Context, **memory: Any) -> Turn:
    """Say the turn's word after a prompt."""
    reward = float(REWARDS[number, words[number], words[0]])
    completion = _said(words[number])
    return replace(make_turn(reward), prompt_ids=prompt, completion=completion, **memory)


def whole_dialogue(words: Sequence[int]) -> Told:
    turns = [_turn(k, words, (k,)) for k in range(3)]
    return turns, [(0,), (0, words[0], 1), (0, words[0], 1, words[1], 2)]


def state_alone(words: Sequence[int]) -> Told:
    """Cut twice; the agent sees what the environment says, which names the last answer."""
    seen: list[Context] = [(0,), (1, words[0]), (2, words[1])]
    return [_turn(k, words, seen[k], begins_sequence=k > 0) for k in range(3)], seen


def window_of_two(words: Sequence[int]) -> Told:
    seen: list[Context] = [(0,), (0, words[0], 1), (1, words[1], 2)]
    turns = [
        _turn(0, words, (0,)),
        _turn(1, words, (1,)),
        _turn(2, words, seen[2], begins_sequence=True),
    ]
    return turns, seen


def with_summaries(words: Sequence[int]) -> Told:
    """Say a word, sum it up, say another after the summary alone, and so on: cut twice."""
    first, one, second, two, third = words
    acts, seen = (first, second, third), [(0,), (0, first, 9), (9, one, 1), (9, one, 1, second, 9)]
    seen.append((9, two, 2))
    notes = [Summary((9,), _said(word), "summary", "?", "") for word in (one, two)]
    turns = [
        _turn(0, acts, (0,)),
        _turn(1, acts, seen[2], begins_sequence=True, summary=notes[0]),
        _turn(2, acts, seen[4], begins_sequence=True, summary=notes[1]),
    ]
    return turns, seen


MEMORIES: dict[str, tuple[Callable[[Sequence[int]], Told], int, int]] = {
    "full": (whole_dialogue, 3, 1),
    "state": (state_alone, 3, 3),
    "window": (window_of_two, 3, 2),
    "compact": (with_summaries, 5, 3),
}
"""What is told by how many words, and in how many training sequences."""


def enumerated(
    play: Callable[[Sequence[int]], Told], answers: int
) -> tuple[list[Trajectory], list[list[Context]], list[tuple[int, ...]]]:
    """Return every trajectory there is, with the contexts and words of its answers."""
    trajectories, contexts, said = [], [], []
    for number, words in enumerate(product(range(SPOKEN), repeat=answers)):
        turns, seen = play(words)
        trajectories.append(make_trajectory(turns, member=number))
        contexts.append(seen)
        said.append(words)
    return trajectories, contexts, said


def closed_form(
    policy: Policy, contexts: list[list[Context]], said: list[tuple[int, ...]], returns: Tensor
) -> tuple[Tensor, Tensor]:
    """Return J = Σ P(τ) R(τ) and P, each answer's probability being that after what the agent
    saw."""
    chance = torch.ones(len(said), dtype=torch.float64)
    for k in range(len(said[0])):
        rows = torch.tensor([context[k] for context in contexts])
        hidden = policy.model.base_model(rows).last_hidden_state[:, -1]
        log_p = torch.log_softmax(cast(Any, policy.model).head(hidden), -1)
        chance = chance * log_p.gather(1, torch.tensor([[w[k]] for w in said]))[:, 0].exp()
    return (chance * returns).sum(), chance


def application_gradient(
    policy: Policy, rollout: RolloutBatch, algorithm: Algorithm, critic: Critic | None
) -> list[Tensor]:
    """Return the gradient that an optimizer batch accumulates."""
    every = torch.ones(len(rollout), dtype=torch.bool)
    with torch.no_grad():
        values = PASSES.values(critic, rollout, every)
    advantages, returns = compute_advantages(rollout, values, algorithm)
    batch = TrainingBatch(rollout, torch.zeros_like(values), values, advantages, returns)
    make_update(algorithm, policy, budget=4000).backward_policy(batch)
    return [p.grad for p in policy.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "estimator",
    [
        DrGRPO(reward_scale=1.0),
        RLOO(reward_scale=1.0),
        ReinforcePlusPlus(reward_at="turn"),
        GAE(),
        BiLevelGAE(turn_gamma=1.0),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("memory", MEMORIES)
def test_the_gradient_is_that_of_the_enumerated_policy(
    memory: str, estimator: AdvantageEstimator
) -> None:
    """Whatever its baseline, each estimator has the direction of the exact gradient, and those that
    do not whiten have its length too."""
    play, answers, rows = MEMORIES[memory]
    trajectories, contexts, said = enumerated(play, answers)
    returns = torch.tensor([t.total_reward for t in trajectories], dtype=torch.float64)
    policy = make_policy(0)
    with torch.no_grad():
        cast(Any, policy.model).head.bias[SPOKEN:] = -80.0
    objective, chance = closed_form(policy, contexts, said, returns)
    expected = torch.autograd.grad(objective, list(policy.parameters()))
    rollout = pack(trajectories, weights=[1.0] * len(trajectories))
    assert len(rollout) == rows * len(trajectories)
    # Every trajectory once, weighted by its probability: the mean over a sample of them all.
    weights = (chance.detach() * len(chance))[rollout.trajectory_ids]
    rollout = replace(rollout, rewards=rollout.rewards.double(), policy_weights=weights)
    aggregation: Aggregation = "sequence_mean_token_sum"
    algorithm = Algorithm(estimator, LogLikelihood(), aggregation, entropy=EntropyBonus(0.0))
    critic = None if algorithm.critic is None else make_critic(1)
    found = application_gradient(policy, rollout, algorithm, critic)
    flat = torch.cat([-gradient.flatten() for gradient in found])
    wanted = torch.cat([gradient.flatten() for gradient in expected])
    scale = flat.norm() / wanted.norm()
    if isinstance(estimator, DrGRPO):
        assert float(scale) == pytest.approx(1.0)
    torch.testing.assert_close(flat, scale * wanted, atol=1e-9, rtol=1e-7)


# --- advantages -----------------------------------------------------------------------------------


def _without_summaries(rows: Sequence[Trajectory]) -> list[Trajectory]:
    return [replace(t, turns=tuple(replace(u, summary=None) for u in t.turns)) for t in rows]


def _with_thoughts(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """Let the first token of each turn be a thought; every other thought is punished."""
    return [
        replace(
            trajectory,
            turns=tuple(
                replace(turn, thought_tokens=1, thought_reward=-0.5 * (number % 2))
                for number, turn in enumerate(trajectory.turns)
            ),
        )
        for trajectory in rows
    ]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("seed", range(4))
def test_advantages_do_not_depend_on_where_the_context_is_cut(estimator: str, seed: int) -> None:
    """The same sampled tokens, rewards and values give the same advantages and targets; with odd
    seeds in a mixture of two environments."""
    drawn = _with_thoughts(worlds.trajectories(seed))
    cut = _without_summaries(worlds.with_cuts(drawn, seed))
    weights = [1.0, 0.5, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    whole, divided = (pack(rows, weights=weights) for rows in (drawn, cut))
    assert len(divided) > len(whole)
    algorithm = Algorithm(ESTIMATORS[estimator].estimator, thought_advantage=ThoughtAdvantage(0.5))
    found = []
    for rollout in (whole, divided):
        rollout = replace(
            rollout,
            outcome_rewards=rollout.outcome_rewards.double(),
            thought_rewards=rollout.thought_rewards.double(),
        )
        if seed % 2:
            env_of = {group: "ab"[group % 2] for group in rollout.group_ids.tolist()}
            rollout = scaled_by_env(rollout, env_of, {"a": 1.0, "b": 0.5})
        found.append(
            compute_advantages(
                rollout,
                worlds.at_tokens(replace(rollout, rewards=rollout.outcome_rewards), 9),
                algorithm,
            )
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one[whole.loss_mask], other[divided.loss_mask])
        assert not other[~divided.loss_mask].any()


def test_rows_that_are_trajectories_go_to_the_estimator_as_they_are() -> None:
    """Without a cut nothing is moved, so that results are the same to the last bit."""
    rollout = worlds.collection(1)
    assert TrajectoryLayout.of(rollout) is None
    values = worlds.at_tokens(rollout, 2)
    algorithm = Algorithm(ESTIMATORS["GAE"].estimator)
    found = compute_advantages(rollout, values, algorithm)
    credited = algorithm.advantage.credit(rollout)
    for one, other in zip(found, algorithm.advantage(rollout, credited, values), strict=True):
        assert torch.equal(one, other)


def test_values_move_to_trajectories_and_back() -> None:
    rollout = worlds.collection(3, cuts=True)
    shuffled = rollout.rows(
        torch.randperm(len(rollout), generator=torch.Generator().manual_seed(0))
    )
    layout = TrajectoryLayout.of(shuffled)
    assert layout is not None
    values = worlds.at_tokens(shuffled, 1)
    assert torch.equal(layout.divided(layout.joined(values)), values)
    joined = layout.trajectories(shuffled)
    ids = torch.unique(rollout.trajectory_ids)
    assert torch.equal(joined.trajectory_ids, ids)
    assert torch.equal(joined.loss_mask.sum(1), joined.trajectory_tokens)
    for row, trajectory in enumerate(ids):
        own = rollout.trajectory_ids == trajectory  # in the order in which they were packed
        for name in ("input_ids", "turn_index", "rewards", "state_ids"):
            wanted = getattr(rollout, name)[own][rollout.loss_mask[own]]
            assert torch.equal(getattr(joined, name)[row][joined.loss_mask[row]], wanted), name


def test_a_loss_of_whole_trajectories_is_refused() -> None:
    Algorithm(policy_loss=GSPO()).check_memory(cuts=False)
    Algorithm(policy_loss=Clip()).check_memory(cuts=True)
    with pytest.raises(ValueError, match="policy_loss is GSPO, whose ratio is that of a whole"):
        Algorithm(policy_loss=GSPO()).check_memory(cuts=True)
    own = Algorithm(per_env={"lake": EnvAlgorithm(policy_loss=GSPO())})
    own.check_memory(cuts=False)
    with pytest.raises(ValueError, match=r"algorithm\.per_env\.lake\.policy_loss is GSPO, whose"):
        own.check_memory(cuts=True)


def test_a_loss_without_a_ratio_is_refused_where_a_rollout_makes_several_updates() -> None:
    plain = Algorithm(advantage=GRPO(), policy_loss=LogLikelihood())
    plain.check_updates(single=True)
    with pytest.raises(
        ValueError, match=r"algorithm\.policy_loss is LogLikelihood, which is right"
    ):
        plain.check_updates(single=False)
    Algorithm(policy_loss=Clip()).check_updates(single=False)
    imitating = Algorithm(advantage=Success(), policy_loss=LogLikelihood())
    imitating.check_updates(single=False)  # any policy may imitate what succeeded
    own = Algorithm(per_env={"lake": EnvAlgorithm(policy_loss=LogLikelihood())})
    with pytest.raises(ValueError, match=r"algorithm\.per_env\.lake\.policy_loss is LogLikelihood"):
        own.check_updates(single=False)


def test_a_loss_is_judged_beside_the_advantage_of_its_own_environment() -> None:
    success, plain = EnvAlgorithm(advantage=Success()), EnvAlgorithm(policy_loss=LogLikelihood())
    both = replace(success, policy_loss=LogLikelihood())
    Algorithm(advantage=GRPO(), per_env={"lake": both}).check_updates(single=False)
    Algorithm(advantage=Success(), per_env={"lake": plain}).check_updates(single=False)
    for wrong in (replace(plain, advantage=GRPO()), EnvAlgorithm(advantage=GRPO())):
        algorithm = Algorithm(Success(), policy_loss=LogLikelihood(), per_env={"lake": wrong})
        with pytest.raises(ValueError, match=r"per_env\.lake\.policy_loss is LogLikelihood"):
            algorithm.check_updates(single=False)
