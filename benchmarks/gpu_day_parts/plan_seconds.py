"""The planner's seconds: rates from the shapes that were measured, and how well they predict.

Writes ``rates.json``, which ``run.py plan --rates`` reads. A rate is the median over the shapes'
runs with adapters. Every shape is also predicted from the others' rates alone, which says how far
seconds planned for a shape that was not measured can be off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.gpu_day_parts.catalog import SHAPES
from benchmarks.gpu_day_parts.part import (
    FOLDER,
    Day,
    Figure,
    PartResult,
    Record,
    SkipPart,
    figures_of,
)
from ragen_pl.cli.plan.seconds import Rates

RATES = "rates.json"
VARIANT = "lora"
SHARES = {
    "prefill": "prefill_of_products",
    "decode": "decode_of_bandwidth",
    "score_pass": "score_pass_of_products",
    "update": "update_of_products",
}
"""By rate: the figure of a shape that it is the median of."""
_PRODUCTS = ("ceilings/bf16/2048_rows", "ceilings/bf16/64_rows")
"""The rate of large products, and that of a tiny day, which measures no larger ones."""


@dataclass(frozen=True)
class Calibration:
    """The shares that the shapes reached, by shape and rate."""

    shares: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, figures: Mapping[str, Figure]) -> Calibration:
        """Collect the shapes for which every share was measured."""
        found = {}
        for shape in SHAPES:
            names = {key: f"speed/{shape}/{VARIANT}/{name}" for key, name in SHARES.items()}
            if all(name in figures for name in names.values()):
                found[shape] = {key: figures[name].value for key, name in names.items()}
        return cls(found)

    def medians(self, without: str | None = None) -> dict[str, float]:
        """Return each rate's median over the shapes, without one of them."""
        chosen = [shares for shape, shares in self.shares.items() if shape != without]
        return {key: median(shares[key] for shares in chosen) for key in SHARES}

    def errors(self, shape: str) -> dict[str, float]:
        """Return by what factor a shape's seconds are planned from the other shapes' rates."""
        others = self.medians(without=shape)
        return {key: self.shares[shape][key] / others[key] for key in SHARES}


def run(day: Day, record: Record) -> None:
    """Calibrate from the outcomes of the parts before."""
    figures = figures_of(outcomes(day))
    calibration = Calibration.of(figures)
    products = next((figures[name] for name in _PRODUCTS if name in figures), None)
    if not calibration.shares or products is None or "ceilings/copy" not in figures:
        raise SkipPart("the parts ceilings and speed have no figures to calibrate with")
    device = torch.cuda.get_device_name() if day.kind == "cuda" else day.device
    rates = Rates(
        device=device,
        products=products.value * 1e12,
        copies=figures["ceilings/copy"].value * 1e9,
        **calibration.medians(),
    )
    rates.save(day.out / RATES)
    record.note(f"run.py plan --rates {RATES} reads what was written for {device}")
    for key, share in calibration.medians().items():
        record.figure(f"seconds/{key}", share)
    if len(calibration.shares) < 2:
        record.note("a single shape has nothing to be predicted from")
        return
    errors = []
    for shape in calibration.shares:
        for key, factor in calibration.errors(shape).items():
            record.figure(f"seconds/{shape}/{key}/planned_to_measured", factor)
            errors.append(abs(factor - 1))
    record.figure("seconds/largest_error", max(errors))


def outcomes(day: Day) -> list[PartResult]:
    """Return what the other parts found."""
    files = sorted((day.out / FOLDER).glob("*.outcome.json"))
    return [PartResult.from_dict(json.loads(file.read_text(encoding="utf-8"))) for file in files]
