"""The title of the learning curve names what was measured."""

from __future__ import annotations

from pathlib import Path

import yaml

from benchmarks.learning_curve import title


def test_the_title_is_the_runs_own(tmp_path: Path) -> None:
    data = {
        "env": {"class_path": "ragen_pl.envs.FrozenLake"},
        "rollout": {"temperature": 0.8},
        "evaluation": {"size": 64, "temperature": 0.0},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": data}))
    assert title(tmp_path, {"evaluations": [{"eval_set": "ice"}]}) == (
        "FrozenLake · lines: training, temperature 0.8 · "
        "points: evaluation set ice, 64 initial states, temperature 0"
    )
