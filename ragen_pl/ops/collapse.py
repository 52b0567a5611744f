"""Tell collapse from convergence by the history of a few indicators (RAGEN's Echo Trap, §4).

Falling spread and entropy are no proof: both also fall when a policy becomes good and sure. What
tells them apart is success. **Red** therefore always needs a *harm*: success well below its best,
the return at the format penalty's floor, or no progress at all. **Amber** is also raised ahead of
any harm, by *early signs*: the format slips, responses grow, entropy climbs out of its valley,
gradients stay high, spread or entropy is lost without a gain. A healthy run shows one of them now
and then, so several must last together. ``docs/echo_trap.md`` has the table of levels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

from ragen_pl.ops.indicators import FEWEST, Indicators, View

_MARGIN = 5.0
"""Standard errors of the smoothed success by which it must have fallen. Its best is the luckiest
of many looks, which alone explains up to about four."""
_MATTERS = 0.05
"""Nats of entropy; a smaller change is no matter, whatever the ratio."""
_MULTIPLES = ("entropy_rose", "gradient_spiked", "entropy_climbed", "responses_grew")
_COUNTS = ("early_signs", "early_patience", "early_signs_at_once")


class Level(IntEnum):
    """Grade the alarm."""

    GREEN = 0
    AMBER = 1
    RED = 2


@dataclass(frozen=True)
class CollapseRules:
    """Set the thresholds; ratios compare a smoothed indicator with its baseline or its best.

    Args:
        smoothing: Weight of the past in the moving averages.
        success_fell: Success below this share of its best, together with a sign, is amber.
        success_collapsed: Below this share it is red with a sign, amber without.
        success_gone: Below this share it is red.
        solved: Success from which on lost spread is convergence, even where nothing was gained.
        spread_fell: In-group std below this share of its baseline is a sign.
        spread_dead: Below this share, and success neither gained nor solved, is red.
        zero_std_share: More groups than this without any spread are a sign.
        entropy_fell: Entropy below this share of its baseline is a sign.
        entropy_rose: Entropy above this multiple of its baseline is a sign.
        format_broke: Valid-format rate below this share of its best is a sign.
        gradient_spiked: Policy gradient norm above this multiple of its baseline is a sign.
        floor_share: More trajectories than this at the penalty floor are red, in quicker averages.
        early_smoothing: Weight of the past in the quicker averages.
        early_signs: So many of them that last are amber; more than there are switch them off.
        early_patience: Iterations in a row that count as lasting.
        early_signs_at_once: So many of them are amber without having lasted.
        format_slipped: Valid-format rate below this share of its best is an early sign.
        responses_grew: Response length above this multiple of its baseline is an early sign.
        entropy_climbed: Entropy above this multiple of its lowest so far is an early sign.
        success_slipped: Success below this share of its best, by more than noise, is an early sign.
    """

    smoothing: float = 0.8
    success_fell: float = 0.75
    success_collapsed: float = 0.5
    success_gone: float = 0.25
    solved: float = 0.6
    spread_fell: float = 0.5
    spread_dead: float = 0.1
    zero_std_share: float = 0.6
    entropy_fell: float = 0.5
    entropy_rose: float = 2.0
    format_broke: float = 0.8
    gradient_spiked: float = 5.0
    floor_share: float = 0.9
    early_smoothing: float = 0.5
    early_signs: int = 2
    early_patience: int = 2
    early_signs_at_once: int = 3
    format_slipped: float = 0.9
    responses_grew: float = 1.2
    entropy_climbed: float = 1.5
    success_slipped: float = 0.8

    def __post_init__(self) -> None:
        for field in fields(self):
            value, where = getattr(self, field.name), f"rules.{field.name}"
            if field.name in ("smoothing", "early_smoothing"):
                if not 0.0 <= value < 1.0:
                    raise ValueError(f"{where} is {value}; it must lie in [0, 1)")
            elif field.name in _COUNTS:
                if value < 1:
                    raise ValueError(f"{where} is {value}; it must be at least 1")
            elif field.name in _MULTIPLES:
                if value <= 1.0:
                    raise ValueError(f"{where} is {value}; a multiple must be above 1")
            elif not 0.0 <= value <= 1.0:
                raise ValueError(f"{where} is {value}; a share must lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say how bad it is, why, and by which numbers."""

    level: Level
    reason: str
    """Names values and baselines; empty when green."""
    ratios: Mapping[str, float]
    """Of smoothed indicators to their baseline or best; empty before there is a baseline."""


CALM = Verdict(Level.GREEN, "", {})


def judge(history: Sequence[Indicators], baseline_iterations: int, rules: CollapseRules) -> Verdict:
    """Judge the last iteration of a history.

    The first ``baseline_iterations`` say what is usual for this run; while they are not complete
    the first half of what there is, and only what cannot be mistaken for a slow start is judged.
    The first five iterations are always green.
    """
    if len(history) < FEWEST:
        return CALM
    view = View(history, baseline_iterations, rules.smoothing)
    quick = View(history, baseline_iterations, rules.early_smoothing)
    signs = _signs(view, rules)
    harms = [_at_floor(quick, rules), _success_lost(view, rules, bool(signs))]
    if len(history) > baseline_iterations:
        harms.append(_no_progress(view, rules))
    level, harm = max(harms, key=lambda finding: finding[0])  # of equal ones the first
    if level is Level.GREEN:
        early = _early(history, baseline_iterations, rules)
        return Verdict(Level.AMBER if early else level, early, view.ratios())
    reason = f"{harm} while {' and '.join(signs)}" if signs else harm
    return Verdict(level, reason, view.ratios())


def _signs(view: View, rules: CollapseRules) -> list[str]:
    """List what is out of its usual range; alone none of it is an alarm."""
    entropy = view.entropy
    moved = abs(entropy.now - entropy.baseline) > _MATTERS
    found = [
        (view.spread.ratio < rules.spread_fell, _told_spread(view)),
        (
            view.zero.now > rules.zero_std_share,
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


def _told_spread(view: View) -> str:
    return f"in-group std is {view.spread.now:.3g} (baseline {view.spread.baseline:.3g})"


def _told_entropy(view: View) -> str:
    return f"entropy is {view.entropy.now:.3g} (baseline {view.entropy.baseline:.3g})"


def _told_format(view: View) -> str:
    return f"{view.format.now:.0%} of turns follow the format (best {view.format.best:.0%})"


def _told_gradient(view: View) -> str:
    if not view.log_grad.values:
        return ""
    now, usual = math.exp(view.log_grad.now), math.exp(view.log_grad.baseline)
    return f"the policy's gradient norm is {now:.3g} (baseline {usual:.3g})"


# --- harms ------------------------------------------------------------------------------------


def _at_floor(view: View, rules: CollapseRules) -> tuple[Level, str]:
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


def _success_lost(view: View, rules: CollapseRules, has_signs: bool) -> tuple[Level, str]:
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


def _no_progress(view: View, rules: CollapseRules) -> tuple[Level, str]:
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


def _early(history: Sequence[Indicators], baseline_iterations: int, rules: CollapseRules) -> str:
    """Word the early signs where there are enough of them; empty otherwise."""
    seen: list[dict[str, str]] = []
    for length in range(len(history), len(history) - rules.early_patience, -1):
        if length < FEWEST:
            break
        view = View(history[:length], baseline_iterations, rules.early_smoothing)
        seen.append(_early_signs(view, rules))
    now = seen[0]
    lasting = {name for name in now if all(name in then for then in seen)}
    lasted = len(seen) == rules.early_patience and len(lasting) >= rules.early_signs
    if not lasted and len(now) < rules.early_signs_at_once:
        return ""
    return f"early signs: {' and '.join(now.values())}"


def _early_signs(view: View, rules: CollapseRules) -> dict[str, str]:
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
