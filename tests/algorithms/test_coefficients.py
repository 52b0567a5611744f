"""The coefficients that a run may adapt: their control, and their state in a checkpoint."""

from __future__ import annotations

import json
import math

import pytest
import torch

from ragen_pl.algorithms.coefficients import Coefficients, EntropyBand
from ragen_pl.algorithms.config import (
    Algorithm,
    Control,
    EntropyBonus,
    EntropySmoothing,
    EnvAlgorithm,
    KLPenalty,
)
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
    with pytest.raises(ValueError, match=r"kl\.place is reward"):
        Algorithm(kl=KLPenalty(place="reward"), per_env={"lake": EnvAlgorithm(advantage=Success())})
    with pytest.raises(ValueError, match=r"entropy\.coef is 0"):
        EntropyBonus(coef=0.0, control=CONTROL)
    with pytest.raises(ValueError, match=r"control\.target is 0"):
        Control(target=0)
    with pytest.raises(ValueError, match=r"advantage\.reward_scale is 0"):
        GAE(reward_scale=0)


SMOOTHING = EntropySmoothing(low=0.5, high=2.0, weight=3.0, window=2, ramp=4.0)


def smoothed(*entropies: float, config: EntropySmoothing = SMOOTHING) -> Coefficients:
    """Return coefficients that have seen the entropies of so many updates."""
    coefficients = Coefficients(Algorithm(entropy=EntropyBonus(0.01, smoothing=config)))
    for entropy in entropies:
        coefficients.observe(torch.tensor(entropy, dtype=torch.float64), NONE)
    return coefficients


def test_the_band_lies_around_the_mean_of_the_latest_updates() -> None:
    assert smoothed().current.entropy_band is None
    assert "train/entropy_band_low" not in smoothed().metrics()
    band = smoothed(9.0, 0.3, 0.5).current.entropy_band
    assert band is not None
    assert (band.low, band.high) == pytest.approx((0.2, 0.8))
    assert band.weight == pytest.approx(3.0 * (1 - math.exp(-3 / 4)))
    metrics = smoothed(9.0, 0.3, 0.5).metrics()
    assert float(metrics["train/entropy_band_low"]) == pytest.approx(band.low)
    assert float(metrics["train/entropy_band_high"]) == pytest.approx(band.high)
    assert float(metrics["train/smoothing_weight"]) == pytest.approx(band.weight)


def test_an_entropy_that_is_not_finite_is_no_part_of_the_history() -> None:
    found = smoothed(0.3, float("nan"), float("inf"), 0.5).current.entropy_band
    assert found == smoothed(0.3, 0.5).current.entropy_band


def test_without_smoothing_there_is_no_band() -> None:
    coefficients = Coefficients(Algorithm())
    coefficients.observe(MUCH, NONE)
    assert coefficients.current.entropy_band is None
    assert coefficients.state_dict()["history"] == {"latest": [], "updates": 0}


def test_a_resumed_history_gives_the_same_bands_bit_for_bit() -> None:
    drawn = torch.rand(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, before = smoothed(*drawn.tolist()), smoothed(*drawn[:4].tolist())
    after = smoothed()
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.current.entropy_band == before.current.entropy_band
    for entropy in drawn[4:]:
        after.observe(entropy, NONE)
    assert after.current.entropy_band == whole.current.entropy_band
    assert after.state_dict() == whole.state_dict()


def test_a_checkpoint_without_a_history_and_one_of_another_window() -> None:
    old = smoothed()
    old.load_state_dict({"kl": 0.0, "entropy": 0.01})  # from before there was smoothing
    assert old.current.entropy_band is None
    shorter = EntropySmoothing(low=0.5, high=2.0, weight=3.0, window=1, ramp=4.0)
    changed = smoothed(config=shorter)
    changed.load_state_dict(smoothed(0.1, 0.4).state_dict())
    weight = 3.0 * -math.expm1(-2 / 4)
    assert changed.current.entropy_band == EntropyBand(0.2, 0.8, weight)
    unused = Coefficients(Algorithm())
    unused.load_state_dict(smoothed(0.1).state_dict())
    assert unused.current.entropy_band is None


def test_a_smoothing_that_cannot_act_is_refused() -> None:
    with pytest.raises(ValueError, match=r"entropy\.coef is 0; entropy\.smoothing needs"):
        EntropyBonus(0.0, smoothing=SMOOTHING)
    with pytest.raises(ValueError, match=r"smoothing\.low is 1\.0 and smoothing\.high is 1\.0"):
        EntropySmoothing(low=1.0, high=1.0)
    for key in ("weight", "window", "ramp"):
        with pytest.raises(ValueError, match=rf"smoothing\.{key} is 0; it must be positive"):
            EntropySmoothing(**{key: 0})
