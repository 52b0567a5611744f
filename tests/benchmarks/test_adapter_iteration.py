"""The runs that take an iteration with adapters apart: what each changes, and what is measured."""

from __future__ import annotations

import pytest

from benchmarks.adapter_iteration import CHANGES, WholePrompts, cells, main, measure, table
from ragen_pl.cli.config.files import prepare
from ragen_pl.cli.configured_parts import ConfiguredParts, configured_parts
from ragen_pl.models.kernels import shared_prompts


@pytest.fixture(autouse=True)
def _shared_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MOST_LEFT", "_MOST_LEFT_WIDE"):
        monkeypatch.setattr(shared_prompts, name, getattr(shared_prompts, name))


def parts(name: str) -> ConfiguredParts:
    (cell,) = cells(3, [name])
    return configured_parts(prepare(["fit", *cell.arguments])[1:])


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_changes_what_it_says(name: str) -> None:
    found = parts(name)
    algorithm = found.model.algorithm
    assert (algorithm.critic is None) == (name == "no critic")
    is_shared = algorithm.critic is not None and algorithm.critic.backbone == "shared"
    assert is_shared == (name not in ("no critic", "own critic"))
    if algorithm.critic is not None:
        assert algorithm.critic.warmup_iterations == 0, "the policy is updated at once"
    assert (algorithm.kl is not None) == (name == "reference")


def test_whole_prompts_are_read_by_every_row() -> None:
    assert shared_prompts._MOST_LEFT > 0
    WholePrompts()
    assert shared_prompts._MOST_LEFT == shared_prompts._MOST_LEFT_WIDE == 0


def test_the_first_iteration_does_not_count() -> None:
    history = {"time/rollout": [9.0, 1.0, 3.0], "time/score_pass": [9.0, 0.5, 0.5]}
    history |= {"time/update": [9.0, 4.0, 2.0]}
    found = measure({"history": history, "costs": {"core_seconds": [20.0, 26.0, 34.0]}})
    assert found == {"rollout": 2.0, "score_pass": 0.5, "update": 3.0, "processor": 7.0}
    text = table({"base": found, "fp32": {**found, "processor": 17.5}})
    assert text.splitlines()[-1].split()[-2:] == ["17.50", "2.50"]


def test_one_iteration_is_too_few() -> None:
    with pytest.raises(SystemExit):
        main(["out", "--iterations", "1"])
