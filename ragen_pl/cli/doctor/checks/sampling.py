"""The sampler: its log-probs are the trainer's, and its tokens follow them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ragen_pl.algorithms.optimization import EXACT
from ragen_pl.cli.doctor.recomputed import recompute
from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.runtime.findings import Finding, failure, ok, warning

_LARGEST_GAP = 0.02
"""Mean difference in a token's log-prob that rounding to bfloat16 does not reach."""
_EXACT_GAP = 1e-3
"""The same for computation in float32."""
_STANDARD_ERRORS = 6.0
"""Distance from its mean that the surprise of properly sampled tokens practically never has."""
_FEWEST = 50


def check_sampling(subject: ExaminedRun) -> Iterator[Finding]:
    """Recompute the log-probs of sampled tokens, and test the tokens against them."""
    found = recompute(subject)
    if found is None:
        yield warning("nothing was sampled", "mend what failed above")
        return
    mask = found.rollout.loss_mask
    gaps = (found.log_probs - found.rollout.sampled_log_probs).abs()[mask]
    mean, largest = float(gaps.mean()), float(gaps.max())
    temperature = found.rollout.temperature
    is_exact = subject.parts.precision == EXACT
    if not mean <= (_EXACT_GAP if is_exact else _LARGEST_GAP):
        yield failure(
            f"the sampler's log-probs differ from the trainer's by {mean:.2g} on average and by "
            f"{largest:.2g} at most: importance ratios would be wrong",
            f"let the engine sample the trainer's weights at temperature {temperature:g} "
            "(model.engine), in the trainer's precision",
        )
        return
    # The surprise -log p of a token has the distribution's entropy as its mean.
    excess = (-found.log_probs - found.entropy)[mask].double()
    error = float(excess.std()) / math.sqrt(len(excess)) if len(excess) > 1 else math.inf
    distance = float(excess.mean()) / error if error > 0 else 0.0
    if len(excess) >= _FEWEST and abs(distance) > _STANDARD_ERRORS:
        way = "likelier" if distance < 0 else "less likely"
        yield failure(
            f"sampled tokens are {way} than the policy's own distribution makes them "
            f"({abs(distance):.0f} standard errors): the sampling is truncated, or at another "
            "temperature",
            "sample with temperature only: no top-p, top-k, min-p or penalties in the engine",
        )
        return
    yield ok(
        f"log-probs of {int(mask.sum())} sampled tokens equal the trainer's up to {largest:.1g} "
        f"(mean {mean:.1g}) at temperature {temperature:g}"
    )
