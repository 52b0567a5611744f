"""The page of the day: every aim beside its figure, the speed of the shapes, how the parts ended.

All figures are in the JSON file; the page shows those that are read beside one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu_day_parts.aims import AIMS, Aim, Verdict
from benchmarks.gpu_day_parts.catalog import SHAPES
from benchmarks.gpu_day_parts.part import Day, Figure, Part, PartResult, Status, figures_of

Figures = Mapping[str, Figure]

_SPEED = {
    "decode tokens/s": "decode",
    "of the bandwidth": "decode_of_bandwidth",
    "rollout tokens/s": "rollout",
    "update tokens/s": "update",
    "TFLOP/s": "update_rate",
    "of large products": "update_of_products",
    "MFU": "update_mfu",
    "peak": "peak_memory",
}
"""By column: the figure of a variant."""
PHASES = ("prefill", "decode", "score_pass", "update")
"""Phases whose seconds are planned: the keys of ``plan_seconds.SHARES``, which takes PyTorch to
import."""


def to_json(day: Day, parts: Sequence[Part], outcomes: Mapping[str, PartResult]) -> dict[str, Any]:
    """Return everything that was found, as plain data."""
    figures = figures_of(list(outcomes.values()))
    return {
        "day": day.identity,
        "aims": [
            {
                **asdict(aim),
                "value": figures[aim.figure].value if aim.figure in figures else None,
                "verdict": aim.verdict(figures, tiny=day.tiny),
            }
            for aim in AIMS
        ],
        "parts": [asdict(outcomes[part.name]) for part in parts if part.name in outcomes],
    }


def to_markdown(day: Day, parts: Sequence[Part], outcomes: Mapping[str, PartResult]) -> str:
    """Return the page."""
    figures = figures_of(list(outcomes.values()))
    ended = [outcomes[part.name] for part in parts if part.name in outcomes]
    sizes = ", tiny shapes: no figure here is a measurement" if day.tiny else ""
    blocks = [f"# The GPU day: device `{day.device}`{sizes}"]
    blocks += [_aims(day, figures), _numerics(figures), _speed(figures), _beside(figures)]
    blocks += [_memory(figures), _seconds(figures)]
    blocks += [_parts(parts, outcomes), _notes(ended)]
    blocks += [_failure(outcome) for outcome in ended]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _aims(day: Day, figures: Figures) -> str:
    verdicts = {aim: aim.verdict(figures, tiny=day.tiny) for aim in AIMS}
    counts = ", ".join(
        f"{count} {verdict}"
        for verdict in Verdict
        if (count := sum(found is verdict for found in verdicts.values()))
    )
    lines = [
        "## Aims of `benchmarks/LOG.md`",
        "",
        f"{counts}. The log names no number where there is no bound.",
        "",
        "| entry | aim | bound | figure | |",
        "|---:|---|---:|---:|---|",
    ]
    lines += [_aim(aim, figures.get(aim.figure), verdict) for aim, verdict in verdicts.items()]
    return "\n".join(lines)


def _aim(aim: Aim, figure: Figure | None, verdict: Verdict) -> str:
    return f"| {aim.entry} | {aim.what} | {aim.bound} | {_value(figure)} | {verdict} |"


def _numerics(figures: Figures) -> str:
    """Return a row per type and way of computing: how far log-probs are from the sampled ones."""
    ways = [name for name in figures if name.startswith("numerics/") and name.endswith("/gap")]
    if not ways:
        return ""
    lines = ["## Sampled and recomputed log-probs", ""]
    lines += _header(["type, way", "largest gap, nats", "mean"])
    for name in ways:
        way = name.removeprefix("numerics/").removesuffix("/gap").replace("/", ", ")
        mean = figures.get(name.removesuffix("gap") + "mean_gap")
        lines.append(_row([way, _value(figures[name]), _value(mean)]))
    return "\n".join(lines)


def _speed(figures: Figures) -> str:
    """Return a row per shape and variant, and vLLM's where it was measured."""
    rows = []
    for shape in SHAPES:
        prefix = f"speed/{shape}/"
        names = dict.fromkeys(
            name.removeprefix(prefix).partition("/")[0]
            for name in figures
            if name.startswith(prefix) and name.count("/") > prefix.count("/")
        )
        for variant in names:
            found = (figures.get(f"{prefix}{variant}/{key}") for key in _SPEED.values())
            rows.append([shape, variant, *(_value(each, with_unit=False) for each in found)])
        rollout = figures.get(f"vllm/{shape}/rollout")
        if rollout is not None:
            other = ["–"] * (len(_SPEED) - 3)
            rows.append([shape, "vLLM", "–", "–", _value(rollout, with_unit=False), *other])
    if not rows:
        return ""
    titles = ["shape", "variant", *_SPEED]
    lines = ["## Speed", "", _row(titles), _row(["---", "---", *["---:"] * len(_SPEED)])]
    return "\n".join([*lines, *map(_row, rows)])


def _beside(figures: Figures) -> str:
    """Return a row per model, what it did, and how: ours beside generate's rollouts or TRL's
    training."""
    rates = [name for name in figures if name.startswith("beside/") and name.count("/") == 3]
    if not rates:
        return ""
    titles = ["model", "what", "way", "trajectories/s", "times generate", "times TRL"]
    titles.append("of the arithmetic limit")
    lines = ["## Beside generate and TRL", "", _row(titles), _row(["---"] * 3 + ["---:"] * 4)]
    for name in rates:
        shares = (figures.get(f"{name}/{key}") for key in ("to_generate", "to_trl", "of_limit"))
        cells = [_value(figures[name], with_unit=False), *map(_value, shares)]
        lines.append(_row([*name.split("/")[1:], *cells]))
    return "\n".join(lines)


def _memory(figures: Figures) -> str:
    """Return a row per case of planned and measured memory."""
    peak = "/peak_ratio"
    cases = [name.removesuffix(peak) for name in figures if name.endswith(peak)]
    if not cases:
        return ""
    phases = ("rollout", "score_pass", "update")
    titles = ["case", *(phase.replace("_", " ") for phase in phases), "peak, planned to measured"]
    lines = ["## Memory, planned and measured", "", *_header(titles)]
    for case in cases:
        pairs = (
            [figures.get(f"{case}/{phase}/{side}") for side in ("planned", "measured")]
            for phase in phases
        )
        cells = [f"{_value(one, with_unit=False)} and {_value(two)}" for one, two in pairs]
        lines.append(_row([case.removeprefix("memory/"), *cells, _value(figures[case + peak])]))
    return "\n".join(lines)


def _seconds(figures: Figures) -> str:
    """Return by what factor each shape's seconds are planned from the other shapes' rates."""
    error = figures.get("seconds/largest_error")
    if error is None:
        return ""
    lines = ["## Seconds, planned from the other shapes and measured", ""]
    lines += [f"The largest error of a phase is {100 * error.value:.0f} %.", ""]
    lines += _header(["shape", *PHASES])
    for shape in SHAPES:
        names = [f"seconds/{shape}/{key}/planned_to_measured" for key in PHASES]
        if names[0] in figures:
            lines.append(_row([shape, *(_value(figures.get(name)) for name in names)]))
    return "\n".join(lines)


def _parts(parts: Sequence[Part], outcomes: Mapping[str, PartResult]) -> str:
    lines = ["## Parts", "", "| part | what | how it ended | seconds |", "|---|---|---|---:|"]
    for part in parts:
        found = outcomes.get(part.name)
        ended = "not run yet" if found is None else _ending(found)
        seconds = "" if found is None else f"{found.seconds:.0f}"
        lines.append(_row([part.name, part.title, ended, seconds]))
    return "\n".join(lines)


def _ending(outcome: PartResult) -> str:
    reason = f" ({_cell(outcome.reason)})" if outcome.reason else ""
    return f"{outcome.status}{reason}"


def _notes(outcomes: Sequence[PartResult]) -> str:
    lines = [f"- {outcome.part}: {note}" for outcome in outcomes for note in outcome.notes]
    return "\n".join(["## Notes", "", *lines]) if lines else ""


def _failure(outcome: PartResult) -> str:
    """Return the end of the log of a part that did not end well."""
    if outcome.status in (Status.DONE, Status.SKIPPED) or not outcome.log_tail:
        return ""
    return "\n".join([f"## The log of {outcome.part}", "", "```text", *outcome.log_tail, "```"])


def _value(figure: Figure | None, *, with_unit: bool = True) -> str:
    """Write a figure with four digits."""
    if figure is None:
        return "–"
    value = figure.value
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {figure.unit}".rstrip() if with_unit else text


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _header(titles: Sequence[str]) -> list[str]:
    """Return the first lines of a table of figures by name."""
    return [_row(titles), _row(["---", *["---:"] * (len(titles) - 1)])]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
