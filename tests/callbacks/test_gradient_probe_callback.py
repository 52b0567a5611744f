"""The probe finds the gradients of the loss itself, and leaves no trace in a run."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from callbacks import GradientProbe, MutualInformation
from callbacks.gradient_probe import in_group_stds, policy_terms
from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import Algorithm, EntropyBonus, KLPenalty
from ragen_pl.algorithms.estimators import GAE, DrGRPO
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.algorithms.policy_losses import ClipCov, KLCov
from ragen_pl.cli.entry_point import main
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.packing import pack
from ragen_pl.training.scoring import forward_policy
from ragen_pl.types import Completion, RolloutBatch, TrainingBatch, Trajectory
from tests.support.doubles import make_trajectory, make_turn
from tests.support.tiny_run import write_config

TRAINER: Any = SimpleNamespace(
    precision_plugin=SimpleNamespace(forward_context=nullcontext),
)
RETURNS = {0: [1.0, 1.0], 1: [0.0, 2.0], 2: [0.0, 8.0]}


def training_batch(weight: float = 1.0) -> TrainingBatch:
    """Pack three groups of two, with spreads 0, √2 and 4√2."""
    trajectories = []
    for group_id, returns in RETURNS.items():
        for member, value in enumerate(returns):
            sampled = tuple(range(20 + group_id, 23 + group_id + member))
            turn = replace(
                make_turn(value),
                completion=Completion(sampled, (-1.0,) * len(sampled), (1.0,) * len(sampled), True),
            )
            trajectories.append(make_trajectory([turn], group_id=group_id, member=member))
    rollout = pack(trajectories, weights=[weight] * 6)
    zeros = torch.zeros_like(rollout.rewards)
    return TrainingBatch(rollout, zeros, zeros, zeros, zeros)


def learner(algorithm: Algorithm, budget: int = 4096) -> Any:
    small = EmbeddedModel(
        hidden_size=32, intermediate_size=64, num_heads=4, num_key_value_heads=2, init_std=0.3
    )
    policy = Policy(small.build([f"w{i}" for i in range(40)], seed=3).model)
    reference = copy.deepcopy(policy) if algorithm.kl_in_loss else None
    if reference is not None:
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.add_(0.01)
    return SimpleNamespace(
        iteration=0,
        policy=policy,
        reference=reference,
        algorithm=algorithm,
        optimization=Optimization(tokens_per_micro_batch=budget),
        coefficients=Coefficients(algorithm),
        values=lambda rollout, chosen: torch.zeros_like(rollout.rewards),
    )


def probed(module: Any, batch: TrainingBatch, **options: Any) -> dict[str, float]:
    callback = GradientProbe(every_n_iterations=1, **options)
    found = callback._probe(TRAINER, module, batch)
    return {name.removeprefix("diagnostics/"): value for name, value in found.items()}


DR_GRPO = Algorithm(advantage=DrGRPO(reward_scale=1.0), entropy=EntropyBonus(coef=0.5))


def norm(loss: Tensor, policy: Policy) -> float:
    grads = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
    return float(torch.stack([g.square().sum() for g in grads if g is not None]).sum().sqrt())


def test_norms_are_those_of_the_policy_gradient_and_the_entropy() -> None:
    module, batch = learner(DR_GRPO), training_batch()
    found = probed(module, batch, num_buckets=3)
    for group_id, returns in RETURNS.items():
        part = batch.rollout.rows(batch.rollout.group_ids == group_id)
        log_probs, entropy, _ = module.policy(part.input_ids, part.loss_mask, part.attention_mask)
        advantages = torch.tensor(returns) - sum(returns) / 2
        tokens = part.loss_mask.sum()
        bucket = f"bucket_{group_id + 1}"
        expected = norm((log_probs * advantages[:, None]).sum() / tokens, module.policy)
        assert found[f"grad_task_{bucket}"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        log_probs, entropy, _ = module.policy(part.input_ids, part.loss_mask, part.attention_mask)
        expected = norm(0.5 * entropy.sum() / tokens, module.policy)
        assert found[f"grad_entropy_{bucket}"] == pytest.approx(expected, rel=1e-4)
        assert found[f"in_group_std_{bucket}"] == pytest.approx([0.0, 2**0.5, 32**0.5][group_id])
    assert not [name for name in found if "kl" in name]


def test_groups_without_spread_teach_nothing_but_noise() -> None:
    """RAGEN-2's finding: the task's pull grows with the spread, the regularizers' does not."""
    found = probed(
        learner(replace(DR_GRPO, kl=KLPenalty(coef=0.1))), training_batch(), num_buckets=3
    )
    task = [found[f"grad_task_bucket_{b}"] for b in (1, 2, 3)]
    assert task[0] == pytest.approx(0.0, abs=1e-6)
    assert task[1] < task[2]
    for term in ("entropy", "kl"):
        assert min(found[f"grad_{term}_bucket_{b}"] for b in (1, 2, 3)) > 1e-3


def test_advantages_come_from_the_critic_on_dropped_trajectories_too() -> None:
    """The batch holds no values where the critic learns from kept trajectories alone."""
    module, batch = learner(Algorithm(advantage=GAE(gae_lambda=1.0))), training_batch()
    without = probed(module, batch, num_buckets=3)
    batch = replace(batch, values=torch.full_like(batch.values, 5.0))
    assert probed(module, batch, num_buckets=3) == without

    def mean_of_the_group(rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        assert bool(chosen.all())
        means = torch.tensor([sum(returns) / 2 for returns in RETURNS.values()])
        return means[rollout.group_ids][:, None].expand_as(rollout.rewards)

    module.values = mean_of_the_group
    found = probed(module, batch, num_buckets=3)
    assert found["grad_task_bucket_3"] != pytest.approx(without["grad_task_bucket_3"], rel=0.1)


def test_neither_micro_batches_nor_the_filter_matter() -> None:
    whole = probed(learner(DR_GRPO), training_batch(), num_buckets=2)
    cut = probed(learner(DR_GRPO, budget=1), training_batch(), num_buckets=2)
    dropped = probed(learner(DR_GRPO), training_batch(weight=0.0), num_buckets=2)
    assert cut == pytest.approx(whole, rel=1e-4, abs=1e-6)
    assert dropped == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("loss", [ClipCov(0.4, 0.0, 9.0), KLCov(0.4, 0.7)])
def test_tokens_are_chosen_by_true_log_probs_of_dropped_trajectories_too(
    loss: ClipCov | KLCov,
) -> None:
    """The batch has none of those that the filter dropped: 0, the log-prob of a sure token, would
    stand for them."""
    module, whole = learner(replace(DR_GRPO, policy_loss=loss)), training_batch()
    with torch.no_grad():
        true = forward_policy(module.policy, whole.rollout).log_probs * whole.rollout.loss_mask
    module.policy_log_probs = lambda rollout: true
    kept = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    rollout = replace(whole.rollout, policy_weights=kept)
    filtered = replace(whole, rollout=rollout, old_log_probs=true * kept[:, None])
    view = policy_terms(module, filtered)
    assert view.batch.old_log_probs.equal(true)
    unfiltered = policy_terms(module, replace(whole, old_log_probs=true))
    assert view.batch.chosen is not None
    assert unfiltered.batch.chosen is not None
    assert bool(view.batch.chosen.any())
    assert view.batch.chosen.equal(unfiltered.batch.chosen)
    module.policy_log_probs = lambda rollout: torch.zeros_like(true)
    wrong = policy_terms(module, filtered).batch.chosen
    assert wrong is not None
    assert not wrong.equal(unfiltered.batch.chosen), "the log-probs matter here"


def test_a_loss_that_chooses_no_tokens_takes_no_further_pass() -> None:
    module, batch = learner(DR_GRPO), training_batch(weight=0.0)
    assert not hasattr(module, "policy_log_probs")
    assert policy_terms(module, batch).batch.old_log_probs is batch.old_log_probs


def test_the_policy_is_left_as_it_was() -> None:
    module = learner(DR_GRPO)
    module.policy.train()
    before = copy.deepcopy(module.policy.state_dict())
    state = torch.get_rng_state()
    probed(module, training_batch())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in module.policy.parameters())
    assert all(part.training for part in module.policy.modules())
    for name, weight in module.policy.state_dict().items():
        assert torch.equal(weight, before[name])


def test_rounding_is_no_spread() -> None:
    rollout = training_batch().rollout
    noise = rollout.rewards + torch.linspace(0, 1e-7, 6)[:, None] * (rollout.rewards > 0)
    spread = in_group_stds(replace(rollout, rewards=noise))
    assert spread[0] == 0.0
    assert list(spread) == [0, 1, 2]


def test_the_spread_is_that_of_trajectories_whatever_the_memory_cuts() -> None:
    """Group 0 has equal returns and unequal turns, group 1 the reverse."""

    def spread(cut: bool) -> dict[int, float]:
        def member(group: int, number: int, rewards: tuple[float, ...]) -> Trajectory:
            turns = [
                replace(make_turn(reward), begins_sequence=cut and place > 0)
                for place, reward in enumerate(rewards)
            ]
            return make_trajectory(turns, group_id=group, member=number)

        equal = [member(0, number, (0.0, 0.0, 0.0, 1.0)) for number in range(4)]
        other = [member(1, number, (number % 2 / 4,) * 4) for number in range(4)]
        return in_group_stds(pack([*equal, *other], weights=[1.0] * 8))

    assert spread(cut=True) == pytest.approx(spread(cut=False))
    assert spread(cut=True)[0] == 0.0


@pytest.mark.parametrize("key", ["every_n_iterations", "num_buckets"])
def test_bad_values_are_named(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is 0"):
        GradientProbe(**cast(Any, {key: 0}))


OVERLAY = """
trainer:
  callbacks:
    - {class_path: callbacks.MutualInformation, init_args: {every_n_iterations: 1}}
    - {class_path: callbacks.GradientProbe, init_args: {every_n_iterations: 2}}
"""


@pytest.mark.run
def test_a_run_with_both_diagnostics_equals_one_without_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrained policy has no readable thoughts, so its first tokens stand in for them."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    (tmp_path / "watch.yaml").write_text(OVERLAY)
    monkeypatch.setattr(Chat, "count_thought_tokens", lambda self, ids: min(4, len(ids)))
    seen: list[str] = []
    for kind in (MutualInformation, GradientProbe):

        def spy(self: Any, metrics: dict[str, float], record: Any = kind.record) -> None:
            seen.extend(metrics)
            record(self, metrics)

        monkeypatch.setattr(kind, "record", spy)
    # bf16: a cast of the weights that outlives a look at them would be found here.
    fit = ["fit", "--config", "tiny", "--trainer.precision", "bf16-mixed"]
    fit += ["--data.evaluation.size", "2", "--model.algorithm.kl.coef", "0.01"]
    assert main([*fit, "--run_dir", "without"]) == 0
    assert main([*fit, "--run_dir", "with", "--config", "watch.yaml"]) == 0
    assert seen.count("diagnostics/mi_first_turn") == 3
    assert seen.count("diagnostics/grad_kl_bucket_1") == 1
    history = json.loads(Path("with", "results.json").read_text())["history"]
    assert {"diagnostics/mi_first_turn", "diagnostics/grad_kl_bucket_1"} <= history.keys()
    states = [
        torch.load(Path(run) / "checkpoints" / "last.ckpt", weights_only=True)
        for run in ("without", "with")
    ]
    for key in ("state_dict", "optimizer_states"):
        a, b = (dict(leaves(state[key])) for state in states)
        assert a.keys() == b.keys()
        for name, value in a.items():
            same = torch.equal(value, b[name]) if isinstance(value, Tensor) else value == b[name]
            assert same, name


def leaves(tree: Any, path: str = "") -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if isinstance(value, dict | list | tuple):
            yield from leaves(value, f"{path}/{key}")
        else:
            yield f"{path}/{key}", value
