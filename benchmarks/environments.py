"""The table of environments in docs/environments.md: who succeeds, how fast, how long texts are.

``python benchmarks/environments.py OUT_DIR [ROW …] [--starts 200] [--seconds 20] [--runs FOLDER]``

Every configuration of ``benchmarks/environments.yaml`` is played on held-out seeds by a random
player (uniform over the named actions, legal or not; none where actions are free text) and by the
environment's expert, one action a turn, until the starts or the processor's seconds are used up.
``--runs`` is a folder of finished runs, which it adds to what training reached
(``trained_environments.yaml``); there ``sudoku.seed2`` is a further seed of the row ``sudoku``.
Writes ``environments.json``, to which a later call adds, and ``environments.md``; ``--docs`` puts
both tables into docs/environments.md, where rows that were not measured keep their figures.
``--no-play`` measures nothing. What was trained under other settings than the row was played with
is marked, and the settings are told below the table.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from jsonargparse import ArgumentParser

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.laboratory_report import table
from benchmarks.trained_environments import (
    Success,
    Trained,
    add_runs,
    read_record,
    trained_cell,
    trained_table,
)
from ragen_pl.cli.config.messages import shorten
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.eval_seeds import eval_starts
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer
from ragen_pl.rollout.actors import Actor, ExpertActor, RandomActor
from ragen_pl.rollout.baselines import play_baseline
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.runtime.durable_files import write_text
from ragen_pl.training.evaluation.results import summarize
from ragen_pl.types import Trajectory

CONFIGURATIONS = Path(__file__).with_name("environments.yaml")
_ROOT = Path(__file__).resolve().parent.parent
DOCS = _ROOT / "docs" / "environments.md"
CONFIGS = _ROOT / "configs" / "experiment"
MEASURED = "<!-- benchmarks/environments.py -->", "<!-- end of the table -->"
TRAINED = "<!-- benchmarks/trained_environments.yaml -->", "<!-- end of what training reached -->"
"""What the tables stand between in the docs."""
_FEWEST = 5
"""Episodes that are played however long they take."""
_OBSERVATIONS = 200
"""Observations whose tokens are counted."""


@dataclass(frozen=True)
class Configuration:
    """A row of the table."""

    name: str
    env: Mapping[str, Any]
    """``class_path`` and ``init_args``."""
    task: str = ""
    """The task of RAGEN-2 that this is or stands in for."""
    note: str = ""

    def build(self) -> TextEnv:
        """Return the environment.

        Raises:
            ConfigError: when it cannot be made, such as without a package that it needs.
        """
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(TextEnv, "env", required=True)
        try:
            built = parser.instantiate(parser.parse_object({"env": dict(self.env)}))
        except ValueError as error:  # the parser's, of what the environment said
            raise ConfigError(shorten(str(error))) from error
        env: TextEnv = built.env
        return env


@dataclass(frozen=True)
class Played:
    """What a player reached."""

    success: float
    low: float
    high: float
    episodes: int
    per_second: float
    """Episodes per second of processor time, the player's thinking included."""
    actions: float
    """Mean actions per episode."""


@dataclass(frozen=True)
class Row:
    """Everything measured of a configuration."""

    random: Played | None
    expert: Played | None
    characters: float
    """Mean per observation, of the expert's episodes or else the random player's."""
    tokens: float
    """Mean per observation, in the embedded model's tokenizer of this environment alone."""


def read_configurations() -> dict[str, Configuration]:
    """Read the rows of the table, by name."""
    content = yaml.safe_load(CONFIGURATIONS.read_text(encoding="utf-8"))
    return {str(name): Configuration(str(name), **given) for name, given in content.items()}


def measure(env: TextEnv, starts: int, seconds: float) -> Row:
    """Play an environment with both players."""
    seeds = [start.seed for start in eval_starts(env, starts)]
    random, seen = _play(env, RandomActor(), seeds, seconds)
    expert, by_expert = _play(env, ExpertActor(), seeds, seconds)
    texts = list(islice(_observations(by_expert or seen), _OBSERVATIONS))
    if not texts:  # free text without an expert: what the agent sees first
        texts = [env.reset(seed=seed)[0] for seed in seeds[:_FEWEST]]
    tokenizer = build_tokenizer(env.vocabulary())
    return Row(
        random,
        expert,
        fmean(map(len, texts)),
        fmean(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts),
    )


def _play(
    env: TextEnv, actor: Actor, seeds: Sequence[int], seconds: float
) -> tuple[Played | None, list[Trajectory]]:
    if not actor.can_play(env):
        return None, []
    budget = RolloutConfig(max_turns=env.max_actions, max_actions_per_turn=1)
    groups, begun = [], time.process_time()
    for number, seed in enumerate(seeds):
        groups.append(play_baseline(env, seed, number, budget, actor))
        if number + 1 >= _FEWEST and time.process_time() - begun > seconds:
            break
    spent = time.process_time() - begun
    result = summarize(groups)
    played = [each for group in groups for each in group.trajectories]
    actions = fmean(sum(len(turn.actions) for turn in each.turns) for each in played)
    rate = len(groups) / max(spent, 1e-9)
    return Played(result.success, result.low, result.high, result.count, rate, actions), played


def _observations(trajectories: Iterable[Trajectory]) -> Iterator[str]:
    return (turn.observation for each in trajectories for turn in each.turns)


# --- the table ------------------------------------------------------------------------------------


_PLAYED = ("random", "expert")
_TEXTS = ("episodes/s random, expert", "actions", "characters", "tokens")
_OTHER = "†"
"""Marks what was trained under other settings than its row was played with."""
_LONGEST_SETTING = 20
"""Characters of a setting that is told; of a longer one, only its name."""


def other_settings(configuration: Configuration, configs: Path = CONFIGS) -> list[str]:
    """Return the settings of a row that its config changes where the trained policy is evaluated.

    The split is left out: both are played on held-out starts. Each is ``key: value (here value)``.
    """
    config = yaml.safe_load((configs / f"{configuration.name}.yaml").read_text(encoding="utf-8"))
    trained = _settings(next(iter(config["data"]["eval_sets"].values())))
    played = _settings(configuration.env)
    changed = [key for key in trained if key != "split" and trained[key] != played[key]]
    return [_setting(key, trained[key], played[key]) for key in changed]


def _settings(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of an environment, those not given by their defaults."""
    module, _, name = env["class_path"].rpartition(".")
    parameters = inspect.signature(getattr(import_module(module), name)).parameters
    return {**{key: each.default for key, each in parameters.items()}, **env.get("init_args", {})}


def _setting(key: str, trained: Any, played: Any) -> str:
    values = [json.dumps(value, ensure_ascii=False, default=str) for value in (trained, played)]
    if max(map(len, values)) > _LONGEST_SETTING:
        return f"`{key}`"
    return f"`{key}: {values[0]}` (here {values[1]})"


def measured_table(
    configurations: Mapping[str, Configuration],
    rows: Mapping[str, Row],
    record: Mapping[str, Trained],
    earlier: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the table as Markdown, and below it what was trained under other settings.

    Args:
        configurations: The rows, in their order; those never measured are left out.
        rows: What was measured.
        record: What training reached.
        earlier: Cells of an earlier table by row and heading, for rows not measured now.
    """
    lines, others = list[tuple[str, ...]](), list[str]()
    for name, each in configurations.items():
        cells = _cells(rows[name]) if name in rows else earlier.get(name)
        if cells is not None:
            label = f"`{name}`" + (f", {each.note}" if each.note else "")
            played, texts = ([cells[key] for key in keys] for keys in (_PLAYED, _TEXTS))
            trained = trained_cell(record.get(name))
            changed = other_settings(each) if name in record else []
            if changed:
                trained += f" {_OTHER}"
                others.append(f"`{name}` {', '.join(changed)}")
            lines.append((label, each.task, *played, trained, *texts))
    found = table(("configuration", "RAGEN-2's task", *_PLAYED, "trained", *_TEXTS), lines)
    told = f"\n\n{_OTHER} Trained under other settings: {'; '.join(others)}." if others else ""
    return found + told


def _cells(row: Row) -> dict[str, str]:
    best = row.expert or row.random
    speeds = [_short(played.per_second) if played else "–" for played in (row.random, row.expert)]
    texts = (
        *(", ".join(speeds), "–" if best is None else f"{best.actions:.1f}"),
        *(f"{row.characters:.0f}", f"{row.tokens:.0f}"),
    )
    played = (_success(row.random), _success(row.expert))
    return dict(zip((*_PLAYED, *_TEXTS), (*played, *texts), strict=True))


def earlier_cells(text: str) -> dict[str, dict[str, str]]:
    """Read the table of a page: cells by row and heading."""
    lines = [line for line in _between(text, MEASURED).splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0].split("`")[1]: dict(zip(split[0], cells, strict=True)) for cells in split[2:]}


def _success(played: Played | None) -> str:
    if played is None:
        return "–"
    return Success(*(100 * share for share in (played.success, played.low, played.high))).whole()


def _short(number: float) -> str:
    """Round to two digits."""
    return f"{float(f'{number:.2g}'):,.0f}" if number >= 1 else f"{number:.2g}"


def put_into(text: str, content: str, marks: tuple[str, str]) -> str:
    """Replace what stands between two marks of a page.

    Raises:
        ConfigError: when the page has no such marks.
    """
    return text.replace(f"{marks[0]}{_between(text, marks)}", f"{marks[0]}\n\n{content}\n\n")


def _between(text: str, marks: tuple[str, str]) -> str:
    begin, end = marks
    if begin not in text or end not in text:
        raise ConfigError(f"{DOCS} has no table: it needs the lines {begin} and {end}")
    return text.partition(begin)[2].partition(end)[0]


def _played(content: Mapping[str, Any] | None) -> Played | None:
    return None if content is None else Played(**content)


def main(given: Sequence[str] | None = None) -> int:
    """Measure what was asked for, and write the table of everything measured so far."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for results and table")
    parser.add_argument("rows", nargs="*", help="names of rows; all by default")
    parser.add_argument("--starts", type=int, default=200, help="held-out starts of a player")
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time of a player")
    parser.add_argument("--runs", type=Path, help="folder of finished runs, by names of rows")
    parser.add_argument("--docs", action="store_true", help="put the tables into the docs")
    parser.add_argument("--no-play", action="store_true", help="measure nothing")
    args = parser.parse_args(given)
    configurations = read_configurations()
    unknown = [name for name in args.rows if name not in configurations]
    if unknown:
        parser.error(f"there is no row {unknown[0]!r}; there are {', '.join(configurations)}")
    path = args.out / "environments.json"
    rows: dict[str, Row] = {}
    if path.is_file():
        for name, each in json.loads(path.read_text(encoding="utf-8")).items():
            rows[name] = Row(
                _played(each["random"]), _played(each["expert"]), each["characters"], each["tokens"]
            )
    for name in () if args.no_play else args.rows or configurations:
        try:
            env = configurations[name].build()
        except ConfigError as error:
            print(f"{name}: left out, {error}")
            continue
        rows[name] = measure(env, args.starts, args.seconds)
        print(name, rows[name])
        write_text(path, json.dumps({key: asdict(row) for key, row in rows.items()}, indent=1))
    record = read_record() if args.runs is None else add_runs(args.runs)
    page = DOCS.read_text(encoding="utf-8")
    found = measured_table(configurations, rows, record, earlier_cells(page) if args.docs else {})
    write_text(args.out / "environments.md", found + "\n")
    if args.docs:
        page = put_into(page, found, MEASURED)
        write_text(DOCS, put_into(page, trained_table(record), TRAINED))
    return 0


if __name__ == "__main__":
    sys.exit(main())
