"""The Echo Trap alarm, which distinguishes collapse from convergence by a run's indicators.

Falling in-group std and entropy prove nothing (RAGEN §4): both also fall when a policy becomes good
and certain. Success is what distinguishes the two. **Red** therefore always needs a *harm*: success
well below its best, the return at the format penalty's floor, or no progress at all. **Amber** is
also raised before any harm, by *early signs*: the valid-format rate falls, responses grow, entropy
rises from its lowest value, gradients stay large, in-group std or entropy falls without a gain. A
healthy run shows one of them now and then, so several must last together. The cause precedes all
symptoms: updates of a large KL. ``docs/echo_trap.md`` has the table of levels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from ragen_pl.ops.echo_trap import thresholds as limits
from ragen_pl.ops.echo_trap.indicators import MIN_ITERATIONS, Indicators, RunHistory
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds

_NOISE_MARGIN = 5.0
"""Number of standard errors by which the smoothed success must have fallen below its best. The best
is the luckiest of many measurements, which alone explains up to about four."""
_MIN_ENTROPY_CHANGE = 0.05
"""Smallest change of entropy, in nats, that counts; smaller ones are ignored at any ratio."""
_STUCK_MARGIN = 0.02
"""Decrease of the penalty share below its baseline that counts as an improvement."""


class Level(IntEnum):
    """The levels of the alarm."""

    GREEN = 0
    AMBER = 1
    RED = 2


@dataclass(frozen=True, slots=True)
class Assessment:
    """A level of the alarm, with its reason and the numbers behind it."""

    level: Level
    reason: str
    """A text that names values and baselines; empty when green."""
    ratios: Mapping[str, float]
    """Smoothed indicators divided by their baseline or best, once there is a baseline; and the KL
    of updates, if it is known."""
    forewarns: bool = False
    """Whether the only finding is a large KL; the policy itself is still sound."""
    never_spoke: bool = False
    """Whether the harm is that the policy follows the response format as little as when RL began:
    it did not collapse, it has not learned the format."""
    signs: tuple[str, ...] = ()
    """The findings that ``reason`` joins, the worst first; also those that alone are no alarm."""


GREEN = Assessment(Level.GREEN, "", {})


def assess(
    history: Sequence[Indicators], baseline_iterations: int, thresholds: CollapseThresholds
) -> Assessment:
    """Assess the last iteration of a history.

    The first ``baseline_iterations`` are the baseline of this run. Until they are complete, the
    first half of the history is the baseline, and only findings that a slow start cannot cause
    count. In the first five iterations that is the KL alone, which needs no baseline.
    """
    run = RunHistory(history, baseline_iterations, limits.SMOOTHING)
    if len(history) < MIN_ITERATIONS:
        return _assess_kl(run, thresholds, run.kl_ratios())
    recent = RunHistory(history, baseline_iterations, limits.EARLY_SMOOTHING)
    signs = _signs(run)
    floor = _at_penalty_floor(recent)
    harms = [floor, _success_lost(run, bool(signs))]
    if len(history) > baseline_iterations:
        harms.append(_no_progress(run, thresholds))
    level, harm = max(harms, key=lambda finding: finding[0])  # of equal levels the first
    if level is Level.GREEN:
        found = _before_harm(run, history, baseline_iterations, thresholds)
        return replace(found, signs=(*found.signs, *(s for s in signs if s not in found.signs)))
    reason = f"{harm} while {' and '.join(signs)}" if signs else harm
    is_floor = harm == floor[1]
    never_spoke = is_floor and recent.penalty_share.baseline > limits.PENALTY_SHARE_RED
    return Assessment(level, reason, run.ratios(), never_spoke=never_spoke, signs=(harm, *signs))


def _signs(run: RunHistory) -> list[str]:
    """List the indicators outside their usual range; none of them alone is an alarm."""
    entropy, zero_std = run.entropy, run.zero_std_fraction
    has_moved = abs(entropy.now - entropy.baseline) > _MIN_ENTROPY_CHANGE
    is_usual = limits.LOW_ENTROPY_SIGN <= entropy.ratio <= limits.HIGH_ENTROPY_SIGN
    found = [
        (run.in_group_std.ratio < limits.STD_SIGN, _std_text(run)),
        (
            zero_std.now > limits.ZERO_STD_SIGN,
            f"{zero_std.now:.0%} of groups have zero std (baseline {zero_std.baseline:.0%})",
        ),
        (has_moved and not is_usual, _entropy_text(run)),
        (run.valid_format.share_of_best < limits.FORMAT_SIGN, _format_text(run)),
        (run.grad_norm_ratio > limits.GRAD_NORM_SIGN, _grad_norm_text(run)),
    ]
    return [text for is_found, text in found if is_found]


def _std_text(run: RunHistory) -> str:
    return f"in-group std is {run.in_group_std.now:.3g} (baseline {run.in_group_std.baseline:.3g})"


def _entropy_text(run: RunHistory) -> str:
    return f"entropy is {run.entropy.now:.3g} (baseline {run.entropy.baseline:.3g})"


def _format_text(run: RunHistory) -> str:
    return (
        f"{run.valid_format.now:.0%} of turns follow the format (best {run.valid_format.best:.0%})"
    )


def _grad_norm_text(run: RunHistory) -> str:
    if not run.log_grad_norm.values:
        return ""
    now, usual = math.exp(run.log_grad_norm.now), math.exp(run.log_grad_norm.baseline)
    return f"the policy's gradient norm is {now:.3g} (baseline {usual:.3g})"


# --- harms ----------------------------------------------------------------------------------------


def _at_penalty_floor(run: RunHistory) -> tuple[Level, str]:
    """Detect returns at the format penalty's floor: no response is valid.

    The caller passes the fast averages, because no other harm is as clear. A run that began at the
    floor becomes red only after twice the baseline's iterations, and only if it does not improve.
    """
    share = run.penalty_share
    if share.now <= limits.PENALTY_SHARE_RED:
        return Level.GREEN, ""
    text = (
        f"{share.now:.0%} of trajectories hold no valid turn (baseline {share.baseline:.0%}), "
        f"which pins the return at {run.mean_return.now:.3g}"
    )
    if share.baseline > limits.PENALTY_SHARE_RED:
        text += "; this is no collapse: RL began so"
    had_time = run.num_iterations >= 2 * run.baseline_iterations
    is_stuck = had_time and share.now >= share.baseline - _STUCK_MARGIN
    if share.baseline < 0.5 or is_stuck:
        return Level.RED, text
    return (Level.AMBER if run.num_iterations > run.baseline_iterations else Level.GREEN), text


def _success_lost(run: RunHistory, has_signs: bool) -> tuple[Level, str]:
    """Detect success that is well below its best, by more than noise explains."""
    success = run.success
    if success.best - success.now <= _NOISE_MARGIN * run.success_error:
        return Level.GREEN, ""
    share = success.share_of_best
    if share < limits.SUCCESS_RED:
        level = Level.RED
    elif share < limits.SUCCESS_RED_WITH_SIGN:
        level = Level.RED if has_signs else Level.AMBER
    else:
        level = Level.AMBER if share < limits.SUCCESS_AMBER and has_signs else Level.GREEN
    return level, f"success fell to {success.now:.2f} (best {success.best:.2f})"


def _no_progress(run: RunHistory, thresholds: CollapseThresholds) -> tuple[Level, str]:
    """Detect a loss of in-group std and entropy without a gain: one template in every state."""
    success = run.success
    if run.improved or success.now >= thresholds.solved_success:
        return Level.GREEN, ""
    text = f"success stays at {success.now:.2f} (baseline {success.baseline:.2f})"
    if run.in_group_std.ratio < limits.STD_RED:
        return Level.RED, text
    is_low = run.in_group_std.ratio < limits.STD_SIGN
    both = is_low and run.entropy.ratio < limits.LOW_ENTROPY_SIGN
    return (Level.AMBER if both else Level.GREEN), text


# --- before any harm ------------------------------------------------------------------------------


def _before_harm(
    run: RunHistory,
    history: Sequence[Indicators],
    baseline_iterations: int,
    thresholds: CollapseThresholds,
) -> Assessment:
    """Assess a run without any harm so far."""
    kl_is_low = run.step_kl <= limits.LOW_APPROX_KL
    early = _alarming_signs(history, baseline_iterations, thresholds, kl_is_low)
    if early:
        reason = f"early signs: {' and '.join(early)}"
        return Assessment(Level.AMBER, reason, run.ratios(), signs=early)
    return _assess_kl(run, thresholds, run.ratios())


def _assess_kl(
    run: RunHistory, thresholds: CollapseThresholds, ratios: Mapping[str, float]
) -> Assessment:
    """Warn of updates with a large KL; green if it is small or unknown."""
    if not run.step_kl > thresholds.max_approx_kl:
        return Assessment(Level.GREEN, "", ratios)
    several = not math.isnan(run.approx_kl)
    what = "updates have an approximate KL" if several else "an update changes the policy by a KL"
    text = (
        f"{what} of {run.step_kl:.2g} nats a token (max_approx_kl is "
        f"{thresholds.max_approx_kl:g}): at such rates success decays or collapses"
    )
    return Assessment(Level.AMBER, text, ratios, forewarns=True, signs=(text,))


def _alarming_signs(
    history: Sequence[Indicators],
    baseline_iterations: int,
    thresholds: CollapseThresholds,
    kl_is_low: bool,
) -> tuple[str, ...]:
    """Return the early signs if there are enough of them for an alarm, else none.

    A policy whose updates have a low approximate KL recovers from a lower valid-format rate. If the
    KL is known to be low, signs must therefore last, and one of them must be success.
    """
    seen: list[dict[str, str]] = []
    for length in range(len(history), len(history) - thresholds.early_patience, -1):
        if length < MIN_ITERATIONS:
            break
        run = RunHistory(history[:length], baseline_iterations, limits.EARLY_SMOOTHING)
        seen.append(_early_signs(run, thresholds))
    now = seen[0]
    lasting = {name for name in now if all(name in then for then in seen)}
    has_lasted = len(seen) == thresholds.early_patience and len(lasting) >= thresholds.early_signs
    if kl_is_low:
        is_alarming = has_lasted and "success" in lasting
    else:
        is_alarming = has_lasted or len(now) > thresholds.early_signs
    return tuple(now.values()) if is_alarming else ()


def _early_signs(run: RunHistory, thresholds: CollapseThresholds) -> dict[str, str]:
    """Return the early signs of a fall of success, a text for each by its name.

    In-group std and entropy count only without a gain, because they also fall as a policy becomes
    good.
    """
    entropy, length = run.entropy, run.response_length
    is_explained = run.improved or run.success.now >= thresholds.solved_success
    rise = entropy.now - entropy.lowest
    found = {
        "format": (
            run.valid_format.share_of_best < limits.FORMAT_EARLY_SIGN,
            _format_text(run),
        ),
        "length": (
            length.ratio > limits.RESPONSE_LENGTH_EARLY_SIGN,
            f"responses have {length.now:.3g} tokens (baseline {length.baseline:.3g})",
        ),
        "rise": (
            rise > _MIN_ENTROPY_CHANGE
            and entropy.now > limits.ENTROPY_RISE_EARLY_SIGN * entropy.lowest,
            f"entropy is {entropy.now:.3g} (it was {entropy.lowest:.3g})",
        ),
        "gradient": (run.grad_norm_ratio > limits.GRAD_NORM_SIGN, _grad_norm_text(run)),
        "std": (
            not is_explained and run.in_group_std.ratio < limits.STD_SIGN,
            _std_text(run),
        ),
        "entropy": (
            not is_explained and entropy.ratio < limits.LOW_ENTROPY_SIGN,
            _entropy_text(run),
        ),
        "success": (
            run.success.share_of_best < limits.SUCCESS_EARLY_SIGN
            and run.success.best - run.success.now > _NOISE_MARGIN * run.success_error,
            f"success is {run.success.now:.2f} (best {run.success.best:.2f})",
        ),
    }
    return {name: text for name, (is_found, text) in found.items() if is_found}
