"""Tell collapse from convergence by the history of a few indicators (RAGEN's Echo Trap, §4).

Falling spread and entropy are no proof: both also fall when a policy becomes good and sure. What
tells them apart is success. **Red** therefore always needs a *harm*: success well below its best,
the return at the format penalty's floor, or no progress at all. **Amber** is also raised ahead of
any harm, by *early signs*: the format slips, responses grow, entropy climbs out of its valley,
gradients stay high, spread or entropy is lost without a gain. A healthy run shows one of them now
and then, so several must last together. Before all symptoms comes a cause: updates that move the
policy far. ``docs/echo_trap.md`` has the table of levels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ragen_pl.ops.echo_trap.indicators import FEWEST, Indicators, RunHistory
from ragen_pl.ops.echo_trap.thresholds import CollapseRules

_MARGIN = 5.0
"""Standard errors of the smoothed success by which it must have fallen. Its best is the luckiest
of many looks, which alone explains up to about four."""
_MATTERS = 0.05
"""Nats of entropy; a smaller change is no matter, whatever the ratio."""


class Level(IntEnum):
    """Grade the alarm."""

    GREEN = 0
    AMBER = 1
    RED = 2


@dataclass(frozen=True, slots=True)
class Assessment:
    """Say how bad it is, why, and by which numbers."""

    level: Level
    reason: str
    """Names values and baselines; empty when green."""
    ratios: Mapping[str, float]
    """Of smoothed indicators to their baseline or best, and the length of steps where it is known;
    the former only once there is a baseline."""
    forewarns: bool = False
    """Whether the length of its steps is all that speaks against the policy, which is sound yet."""


GREEN = Assessment(Level.GREEN, "", {})


def assess(
    history: Sequence[Indicators], baseline_iterations: int, rules: CollapseRules
) -> Assessment:
    """Judge the last iteration of a history.

    The first ``baseline_iterations`` say what is usual for this run; while they are not complete
    the first half of what there is, and only what cannot be mistaken for a slow start is judged.
    In the first five iterations that is the length of steps alone, which needs no past.
    """
    view = RunHistory(history, baseline_iterations, rules.smoothing)
    if len(history) < FEWEST:
        return _judge_steps(view, rules, view.steps())
    quick = RunHistory(history, baseline_iterations, rules.early_smoothing)
    signs = _signs(view, rules)
    harms = [_at_floor(quick, rules), _success_lost(view, rules, bool(signs))]
    if len(history) > baseline_iterations:
        harms.append(_no_progress(view, rules))
    level, harm = max(harms, key=lambda finding: finding[0])  # of equal ones the first
    if level is Level.GREEN:
        return _foresee(view, history, baseline_iterations, rules)
    reason = f"{harm} while {' and '.join(signs)}" if signs else harm
    return Assessment(level, reason, view.ratios())


def _signs(view: RunHistory, rules: CollapseRules) -> list[str]:
    """List what is out of its usual range; alone none of it is an alarm."""
    entropy = view.entropy
    moved = abs(entropy.now - entropy.baseline) > _MATTERS
    found = [
        (view.spread.ratio < rules.spread_fell, _told_spread(view)),
        (
            view.zero.now > rules.zero_std_fraction,
            f"{view.zero.now:.0%} of groups have no spread (baseline {view.zero.baseline:.0%})",
        ),
        (
            moved and not rules.entropy_fell <= entropy.ratio <= rules.entropy_rose,
            _told_entropy(view),
        ),
        (view.format.share_of_best < rules.format_broke, _told_format(view)),
        (view.grad_ratio > rules.gradient_spiked, _told_gradient(view)),
    ]
    return [text for is_found, text in found if is_found]


def _told_spread(view: RunHistory) -> str:
    return f"in-group std is {view.spread.now:.3g} (baseline {view.spread.baseline:.3g})"


def _told_entropy(view: RunHistory) -> str:
    return f"entropy is {view.entropy.now:.3g} (baseline {view.entropy.baseline:.3g})"


def _told_format(view: RunHistory) -> str:
    return f"{view.format.now:.0%} of turns follow the format (best {view.format.best:.0%})"


def _told_gradient(view: RunHistory) -> str:
    if not view.log_grad.values:
        return ""
    now, usual = math.exp(view.log_grad.now), math.exp(view.log_grad.baseline)
    return f"the policy's gradient norm is {now:.3g} (baseline {usual:.3g})"


# --- harms ------------------------------------------------------------------------------------


def _at_floor(view: RunHistory, rules: CollapseRules) -> tuple[Level, str]:
    """Find returns pinned at the format penalty: nothing the agent says is understood.

    Nothing is as plain as this, so it is seen in the quicker averages. A run that began so is given
    twice the baseline's time, and longer while it gets better.
    """
    floor = view.floor
    if floor.now <= rules.floor_share:
        return Level.GREEN, ""
    text = (
        f"{floor.now:.0%} of trajectories hold no valid turn (baseline {floor.baseline:.0%}), "
        f"which pins the return at {view.returns.now:.3g}"
    )
    had_time = view.length >= 2 * view.baseline_iterations
    stuck = had_time and floor.now >= floor.baseline - 0.02
    if floor.baseline < 0.5 or stuck:
        return Level.RED, text
    return (Level.AMBER if view.length > view.baseline_iterations else Level.GREEN), text


def _success_lost(view: RunHistory, rules: CollapseRules, has_signs: bool) -> tuple[Level, str]:
    """Find success well below its best, by more than noise explains."""
    success = view.success
    if success.best - success.now <= _MARGIN * view.error:
        return Level.GREEN, ""
    share = success.share_of_best
    if share < rules.success_gone:
        level = Level.RED
    elif share < rules.success_collapsed:
        level = Level.RED if has_signs else Level.AMBER
    else:
        level = Level.AMBER if share < rules.success_fell and has_signs else Level.GREEN
    return level, f"success fell to {success.now:.2f} (best {success.best:.2f})"


def _no_progress(view: RunHistory, rules: CollapseRules) -> tuple[Level, str]:
    """Find variety lost without anything gained: the template that leads nowhere."""
    success = view.success
    if view.improved or success.now >= rules.solved:
        return Level.GREEN, ""
    text = f"success stays at {success.now:.2f} (baseline {success.baseline:.2f})"
    if view.spread.ratio < rules.spread_dead:
        return Level.RED, text
    both = view.spread.ratio < rules.spread_fell and view.entropy.ratio < rules.entropy_fell
    return (Level.AMBER if both else Level.GREEN), text


# --- early signs --------------------------------------------------------------------------------


def _foresee(
    view: RunHistory, history: Sequence[Indicators], baseline_iterations: int, rules: CollapseRules
) -> Assessment:
    """Judge a policy that has come to no harm yet."""
    early = _early(history, baseline_iterations, rules, view.step <= rules.step_is_short)
    if early:
        return Assessment(Level.AMBER, early, view.ratios())
    return _judge_steps(view, rules, view.ratios())


def _judge_steps(view: RunHistory, rules: CollapseRules, ratios: Mapping[str, float]) -> Assessment:
    """Forewarn of updates that move the policy far; green where they do not, or it is not known."""
    if not view.step > rules.step_too_long:
        return Assessment(Level.GREEN, "", ratios)
    text = (
        f"updates move the policy by {view.step:.2g} nats a token (much is "
        f"{rules.step_too_long:g}): at such rates success wears off or collapses"
    )
    return Assessment(Level.AMBER, text, ratios, forewarns=True)


def _early(
    history: Sequence[Indicators],
    baseline_iterations: int,
    rules: CollapseRules,
    steps_are_short: bool,
) -> str:
    """Word the early signs where there are enough of them; empty otherwise.

    A policy that is known to take short steps recovers from a slip: there signs must last, and
    success must slip with them.
    """
    seen: list[dict[str, str]] = []
    for length in range(len(history), len(history) - rules.early_patience, -1):
        if length < FEWEST:
            break
        view = RunHistory(history[:length], baseline_iterations, rules.early_smoothing)
        seen.append(_early_signs(view, rules))
    now = seen[0]
    lasting = {name for name in now if all(name in then for then in seen)}
    lasted = len(seen) == rules.early_patience and len(lasting) >= rules.early_signs
    if steps_are_short:
        is_alarming = lasted and "success" in lasting
    else:
        is_alarming = lasted or len(now) >= rules.early_signs_at_once
    if not is_alarming:
        return ""
    return f"early signs: {' and '.join(now.values())}"


def _early_signs(view: RunHistory, rules: CollapseRules) -> dict[str, str]:
    """Find what precedes the fall of success, by name.

    Spread and entropy also fall as a policy becomes good: they count only where nothing is gained.
    """
    entropy, length = view.entropy, view.length_of_responses
    explained = view.improved or view.success.now >= rules.solved
    climb = entropy.now - entropy.lowest
    found = {
        "format": (view.format.share_of_best < rules.format_slipped, _told_format(view)),
        "length": (
            length.ratio > rules.responses_grew,
            f"responses have {length.now:.3g} tokens (baseline {length.baseline:.3g})",
        ),
        "climb": (
            climb > _MATTERS and entropy.now > rules.entropy_climbed * entropy.lowest,
            f"entropy is {entropy.now:.3g} (it was {entropy.lowest:.3g})",
        ),
        "gradient": (view.grad_ratio > rules.gradient_spiked, _told_gradient(view)),
        "spread": (
            not explained and view.spread.ratio < rules.spread_fell,
            _told_spread(view),
        ),
        "entropy": (
            not explained and entropy.ratio < rules.entropy_fell,
            _told_entropy(view),
        ),
        "success": (
            view.success.share_of_best < rules.success_slipped
            and view.success.best - view.success.now > _MARGIN * view.error,
            f"success is {view.success.now:.2f} (best {view.success.best:.2f})",
        ),
    }
    return {name: text for name, (is_found, text) in found.items() if is_found}
