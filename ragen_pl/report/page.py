"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import yaml

from ragen_pl.report import charts, headline
from ragen_pl.report.run_data import RunData
from ragen_pl.report.side_by_side import compare_scores, differing_settings, leaves
from ragen_pl.report.trajectory_view import TrajectoryViews
from ragen_pl.runtime.visible_text import visible

REPORT = "report.html"
"""Name of a run's report in its folder."""
MAX_TRAJECTORIES = 500
MAX_BYTES = 30_000_000
"""Bytes of records, over all runs, that a page shows: a browser must unpack them in a second."""
_ASSETS = Path(__file__).parent / "html"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the resolved configuration."""

    key: str
    value: str
    default: str | None
    """None where no default is known: the key is required, or of another class."""
    differs: bool


def build_report(
    runs: Sequence[RunData],
    max_trajectories: int = MAX_TRAJECTORIES,
    defaults: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the page.

    Args:
        runs: The runs; with several, each is compared with the first.
        max_trajectories: Trajectories in the page, over all runs; ``choose`` says which.
        defaults: Of each run, the default values of its keys, as far as they are known.
    """
    names = [visible(name) for name in headline.unique_names(runs)]
    views = TrajectoryViews()
    for number, (run, limit) in enumerate(zip(runs, shares(runs, max_trajectories), strict=True)):
        views.add(number, run, limit, MAX_BYTES // len(runs))
    known = [*defaults, *({} for _ in runs)]
    data = {
        "runs": [{"name": name, **_figures(run)} for name, run in zip(names, runs, strict=True)],
        "comparison": (
            [chart.plain() for chart in charts.comparison_charts(runs, names)]
            if len(runs) > 1
            else []
        ),
        "rows": views.rows,
    }
    archive = {
        "boards": views.boards.pictures,
        "systems": views.systems,
        "details": views.details,
    }
    metrics = [_metrics(run) for run in runs]
    script = _asset("report.js")
    return _template().render(
        title=" · ".join(names),
        runs=[
            {
                "name": name,
                "data": run,
                "gains": headline.gains(run),
                "thoughts": headline.thoughts(run),
                "alarm": headline.alarm(run),
                "phases": _phase_totals(run),
                "evaluations": _by_set(run),
                "has_pass_at": any(k > 1 for e in run.evaluations for k in e.result.pass_at),
                "has_action_ratio": any(e.result.action_ratio is not None for e in run.evaluations),
                "settings": settings(run, given),
                "has_defaults": bool(given),
            }
            for name, run, given in zip(names, runs, known, strict=False)
        ],
        rows=compare_scores(runs) if len(runs) > 1 else [],
        differing=[
            (key, [_plain(value) for value in values])
            for key, values in (differing_settings(runs) if len(runs) > 1 else [])
        ],
        num_trajectories=len(views.rows),
        num_found=views.found,
        board_errors=views.boards.errors,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=_asset("report.css"),
        script=script,
        policy=content_policy(script, plotly_source()),
        data=to_script_json(data),
        archive=packed(json.dumps(archive, separators=(",", ":"))),
        metrics=packed(json.dumps(metrics, separators=(",", ":"))),
        library=packed_library(),
    )


def shares(runs: Sequence[RunData], limit: int) -> list[int]:
    """Divide the number of trajectories evenly over runs; what one does not need goes to others."""
    counts = [len(run.entries) for run in runs]
    found = [0] * len(runs)
    left, waiting = limit, sorted(range(len(runs)), key=counts.__getitem__)
    for done, place in enumerate(waiting):
        found[place] = min(counts[place], left // (len(waiting) - done))
        left -= found[place]
    return found


# --- parts ----------------------------------------------------------------------------------------


def _figures(run: RunData) -> dict[str, Any]:
    single = {
        "alarm": charts.alarm_chart(run),
        "signs": charts.sign_charts(run),
        "phases": charts.phase_chart(run),
    }
    return {
        "groups": [
            {"heading": heading, "charts": [chart.plain() for chart in found]}
            for heading, found in charts.learning_charts(run).items()
        ],
        **{name: None if chart is None else chart.plain() for name, chart in single.items()},
        "metrics": sorted(run.curves),
        "end": charts.last_iteration(run),
    }


def _metrics(run: RunData) -> dict[str, Any]:
    """Return every metric as traces, for the selector."""
    return {name: charts.line(curve, name, 0) for name, curve in run.curves.items()}


def _phase_totals(run: RunData) -> list[tuple[str, float, float]]:
    """Return name, seconds and share of every phase."""
    seconds = {name: sum(each.values()) for name, each in charts.phase_seconds(run).items()}
    whole = sum(seconds.values())
    return [(name, value, value / whole) for name, value in seconds.items()] if whole else []


def _by_set(run: RunData) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for entry in run.evaluations:
        found.setdefault(entry.eval_set, []).append(entry)
    return found


def settings(run: RunData, defaults: Mapping[str, Any]) -> list[Setting]:
    """Return the keys of a run's configuration with their defaults."""
    return [
        Setting(
            key,
            _plain(value),
            _plain(defaults[key]) if key in defaults else None,
            key in defaults and defaults[key] != value,
        )
        for key, value in leaves(run.config)
    ]


def _plain(value: Any) -> str:
    """Write a value as it stands in YAML, on one line where it fits."""
    if isinstance(value, str) and value:
        return visible(value.strip("\n"))
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return visible(text.removesuffix("...\n").strip())


# --- assembling -----------------------------------------------------------------------------------


def to_script_json(data: Any) -> str:
    """Return JSON that may stand in a script element: no character in it can end the element or
    begin a comment, and all are ASCII."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def packed(text: str) -> str:
    """Compress a text and write it in base64, which means nothing to an HTML parser."""
    content = gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)
    return base64.b64encode(content).decode("ascii")


def script_hash(source: str) -> str:
    """Return the source expression that allows exactly this inline script."""
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def content_policy(*scripts: str) -> str:
    """Return the content security policy: these scripts alone may run, nothing is loaded.

    Styles may stand inline: the charts set them on their elements. They can load nothing either.
    """
    allowed = " ".join(map(script_hash, scripts))
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=1)
def plotly_source() -> str:
    """Return the chart library's JavaScript, from its Python package."""
    return files("plotly").joinpath("package_data/plotly.min.js").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def packed_library() -> str:
    """Return the chart library, packed."""
    return packed(plotly_source())


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": lambda share: f"{100 * share:.1f} %",
        "points": lambda share: f"{100 * share:+.1f}".replace("-", "−"),
        "duration": headline.duration,
        "quantity": headline.quantity,
        "visible": visible,
    }
    return environment.get_template("page.html.j2")
