"""The coefficients that a run may adapt: their control, and their state in a checkpoint."""

from __future__ import annotations

import pytest
import torch

from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import Algorithm, Control, EntropyBonus, KLPenalty
from ragen_pl.algorithms.estimators import GAE, Success

CONTROL = Control(target=0.1, horizon=10)
NONE, MUCH = torch.tensor(0.0), torch.tensor(9.0)


def test_fixed_coefficients_stay() -> None:
    coefficients = Coefficients(Algorithm(kl=KLPenalty(coef=0.2), entropy=EntropyBonus(0.01)))
    coefficients.observe(MUCH, MUCH)
    assert (coefficients.kl, coefficients.entropy) == (0.2, 0.01)
    assert Coefficients(Algorithm()).kl == 0.0


def test_too_much_kl_raises_its_coefficient_and_too_much_entropy_lowers_its() -> None:
    algorithm = Algorithm(
        kl=KLPenalty(coef=0.2, control=CONTROL), entropy=EntropyBonus(0.01, control=CONTROL)
    )
    coefficients = Coefficients(algorithm)
    coefficients.observe(MUCH, MUCH)
    assert coefficients.kl == pytest.approx(0.2 * 1.02)
    assert coefficients.entropy == pytest.approx(0.01 * 0.98)


def test_a_nan_entropy_changes_nothing() -> None:
    coefficients = Coefficients(Algorithm(entropy=EntropyBonus(0.01, control=CONTROL)))
    coefficients.observe(torch.tensor(float("nan")), NONE)
    assert coefficients.entropy == 0.01


def test_a_policy_without_entropy_gets_a_larger_bonus() -> None:
    coefficients = Coefficients(Algorithm(entropy=EntropyBonus(0.01, control=CONTROL)))
    coefficients.observe(NONE, NONE)
    assert coefficients.entropy == pytest.approx(0.01 * 1.02)


@pytest.mark.parametrize("kl", [float("nan"), float("inf")])
def test_a_kl_that_is_not_finite_changes_nothing(kl: float) -> None:
    coefficients = Coefficients(Algorithm(kl=KLPenalty(coef=0.2, control=CONTROL)))
    coefficients.observe(MUCH, torch.tensor(kl))
    assert coefficients.kl == 0.2


def test_a_rollout_is_penalized_with_the_current_coefficient_and_controls_the_next() -> None:
    algorithm = Algorithm(kl=KLPenalty(0.5, "k1", "reward", CONTROL))
    coefficients = Coefficients(algorithm)
    mask = torch.tensor([[False, True, True]])
    log_probs, reference = torch.tensor([[0.0, -1.0, -2.0]]), torch.tensor([[0.0, -2.0, -2.5]])
    penalty = coefficients.reward_penalty(log_probs, reference, mask)
    assert penalty[mask].tolist() == [0.5, 0.25]
    assert float(coefficients.metrics()["train/kl"]) == pytest.approx(0.75)
    assert float(coefficients.metrics()["train/kl_coef"]) == 0.5, "the coefficient in these rewards"
    assert coefficients.kl == pytest.approx(0.5 * 1.02)
    coefficients.observe(MUCH, NONE)  # the loss has no KL term, and so no measurement
    assert coefficients.kl == pytest.approx(0.5 * 1.02)


def test_a_checkpoint_holds_controlled_coefficients_and_the_configuration_the_others() -> None:
    controlled = Algorithm(kl=KLPenalty(coef=0.2, control=CONTROL), entropy=EntropyBonus(0.01))
    before = Coefficients(controlled)
    before.observe(MUCH, MUCH)
    after = Coefficients(controlled)
    after.load_state_dict(before.state_dict())
    assert after.kl == before.kl != 0.2
    other = Coefficients(Algorithm(entropy=EntropyBonus(0.7)))
    other.load_state_dict(before.state_dict())
    assert (other.kl, other.entropy) == (0.0, 0.7)


def test_keys_without_a_joint_effect_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kl\.place is reward"):
        Algorithm(advantage=Success(), kl=KLPenalty(place="reward"))
    with pytest.raises(ValueError, match=r"entropy\.coef is 0"):
        EntropyBonus(coef=0.0, control=CONTROL)
    with pytest.raises(ValueError, match=r"control\.target is 0"):
        Control(target=0)
    with pytest.raises(ValueError, match=r"advantage\.reward_scale is 0"):
        GAE(reward_scale=0)
