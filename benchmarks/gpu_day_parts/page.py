"""The page of the day: every aim beside its figure, then what each part found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu_day_parts.aims import AIMS, Aim, Verdict
from benchmarks.gpu_day_parts.part import Day, Figure, Outcome, Part, Status, figures_of


def to_json(day: Day, parts: Sequence[Part], outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Return everything that was found, as plain data."""
    figures = figures_of(list(outcomes.values()))
    return {
        "day": day.identity,
        "parts": [asdict(outcomes[part.name]) for part in parts if part.name in outcomes],
        "aims": [
            {**asdict(aim), "verdict": aim.verdict(figures), "value": _value(figures, aim)}
            for aim in AIMS
        ],
    }


def _value(figures: Mapping[str, Figure], aim: Aim) -> float | None:
    return figures[aim.figure].value if aim.figure in figures else None


def to_markdown(day: Day, parts: Sequence[Part], outcomes: Mapping[str, Outcome]) -> str:
    """Return the page."""
    figures = figures_of(list(outcomes.values()))
    blocks = [f"# The GPU day: {_device(day)}", _aims(figures), _parts(parts, outcomes)]
    blocks += [_findings(part, outcomes[part.name]) for part in parts if part.name in outcomes]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _device(day: Day) -> str:
    sizes = ", tiny shapes: no figure here is a measurement" if day.tiny else ""
    return f"device `{day.device}`{sizes}"


def _aims(figures: Mapping[str, Figure]) -> str:
    verdicts = {aim: aim.verdict(figures) for aim in AIMS}
    counts = ", ".join(
        f"{sum(found is verdict for found in verdicts.values())} {verdict}" for verdict in Verdict
    )
    lines = [
        "## Aims of `benchmarks/LOG.md`",
        "",
        f"{counts}. The log names no number where there is no bound.",
        "",
        "| entry | aim | bound | figure | |",
        "|---:|---|---:|---:|---|",
    ]
    for aim, verdict in verdicts.items():
        found = figures.get(aim.figure)
        value = "–" if found is None else number(found)
        lines.append(f"| {aim.entry} | {aim.what} | {aim.bound} | {value} | {verdict} |")
    return "\n".join(lines)


def _parts(parts: Sequence[Part], outcomes: Mapping[str, Outcome]) -> str:
    lines = ["## Parts", "", "| part | what | how it ended | seconds |", "|---|---|---|---:|"]
    for part in parts:
        found = outcomes.get(part.name)
        ended = "not run yet" if found is None else _ending(found)
        seconds = "" if found is None else f"{found.seconds:.0f}"
        lines.append(f"| {part.name} | {part.title} | {ended} | {seconds} |")
    return "\n".join(lines)


def _ending(outcome: Outcome) -> str:
    reason = f" ({_cell(outcome.reason)})" if outcome.reason else ""
    return f"{outcome.status}{reason}"


def _findings(part: Part, outcome: Outcome) -> str:
    """Return a part's notes, figures and, where it failed, the end of its log."""
    if not (outcome.notes or outcome.figures or outcome.log_tail):
        return ""
    lines = [f"## {part.name}", ""]
    lines += [f"- {note}" for note in outcome.notes]
    if outcome.figures:
        lines += ["", "| figure | value |", "|---|---:|"]
        lines += [f"| {_cell(each.name)} | {number(each)} |" for each in outcome.figures]
    if outcome.status not in (Status.DONE, Status.SKIPPED) and outcome.log_tail:
        lines += ["", "```text", *outcome.log_tail, "```"]
    return "\n".join(lines)


def number(figure: Figure) -> str:
    """Write a figure with four digits and its unit."""
    value = figure.value
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {figure.unit}".rstrip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
