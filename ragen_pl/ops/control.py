"""Steer a coefficient towards a target."""

from __future__ import annotations

_LARGEST_ERROR = 0.2


def steer(coef: float, measured: float, target: float, horizon: float, *, raises: bool) -> float:
    """Return the next coefficient: c · (1 ± e / horizon), e = clip(measured / target − 1, ±0.2).

    The proportional controller of Ziegler et al. 2019 (1909.08593, §2.2), which steps once per
    update here rather than by episodes.

    Args:
        coef: Above 0: a coefficient of 0 would stay there.
        measured: What the coefficient acts on.
        target: What that should be, above 0.
        horizon: Updates it takes at the largest error for a change of 20 %.
        raises: Whether a larger coefficient raises what is measured (an entropy bonus) rather than
            lowers it (a KL penalty).
    """
    error = min(_LARGEST_ERROR, max(-_LARGEST_ERROR, measured / target - 1.0))
    return coef * (1.0 + (-error if raises else error) / horizon)
