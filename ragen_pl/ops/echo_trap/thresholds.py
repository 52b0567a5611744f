"""Set the thresholds of collapse and of what precedes it."""

from __future__ import annotations

from dataclasses import dataclass, fields

_MULTIPLES = ("entropy_rose", "gradient_spiked", "entropy_climbed", "responses_grew")
_NATS = ("step_too_long", "step_is_short")
_COUNTS = ("early_signs", "early_patience", "early_signs_at_once")


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
        zero_std_fraction: More groups than this without any spread are a sign.
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
        step_too_long: Approximate KL between the policy that played and the one being updated, in
            nats per token, averaged over an iteration's updates, above which amber warns of what is
            likely to follow; ``.inf`` switches that off.
        step_is_short: Up to this KL early signs must last, and success must slip with them.
    """

    smoothing: float = 0.8
    success_fell: float = 0.75
    success_collapsed: float = 0.5
    success_gone: float = 0.25
    solved: float = 0.6
    spread_fell: float = 0.5
    spread_dead: float = 0.1
    zero_std_fraction: float = 0.6
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
    step_too_long: float = 0.015
    step_is_short: float = 0.015

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
            elif field.name in _NATS:
                if value <= 0.0:
                    raise ValueError(f"{where} is {value}; nats must be above 0")
            elif not 0.0 <= value <= 1.0:
                raise ValueError(f"{where} is {value}; a share must lie in [0, 1]")
