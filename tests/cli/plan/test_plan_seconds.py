"""The planned seconds are the counted work at the measured rates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from benchmarks.roofline import sizes_of
from benchmarks.workload import RandomModel
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.cli.entry_point import BAD_CONFIG, main
from ragen_pl.cli.plan.inputs import Cluster
from ragen_pl.cli.plan.networks import MetaNetworks
from ragen_pl.cli.plan.operations import DecoderSizes
from ragen_pl.cli.plan.passes import kv_cache_bytes
from ragen_pl.cli.plan.seconds import Rates, describe_seconds, pass_work
from ragen_pl.errors import ConfigError
from ragen_pl.models.lora import LoRA
from tests.cli.plan.inputs import ROLLOUT, plan_input
from tests.support.tiny_run import write_config

RATES = Rates(
    device="one", products=1e9, copies=1e6, prefill=0.5, decode=0.25, score_pass=0.5, update=1.0
)
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96
"""Queries and output, keys and values of half the width, and the three maps of the MLP."""


def test_sizes_are_those_of_the_shape() -> None:
    sizes = DecoderSizes.of(MetaNetworks.of(plan_input()).model)
    assert sizes.layer_weights == 5 * LAYER
    assert sizes.head_weights == 300 * 64
    assert sizes.attention == 5 * 64
    assert sizes.step_bytes(2) == 2 * (5 * LAYER + 300 * 64)
    # A context of one more token than the plan's longest, in bfloat16.
    rows, slots = 12, ROLLOUT.max_context + 1
    cache = sizes.step_bytes(2, rows, slots) - sizes.step_bytes(2)
    assert cache == kv_cache_bytes(plan_input(), rows)


def test_a_random_models_sizes_are_counted_and_in_closed_form() -> None:
    model = RandomModel(64, 96, 3, 4, 2)
    with torch.device("meta"):
        built = RandomModel(64, 96, 3, 4, 2, device="meta").build((), 0).model
    assert DecoderSizes.of(built) == sizes_of(model)


def test_operations_are_counted_by_hand() -> None:
    sizes = DecoderSizes(layer_weights=100, attention=8, head_weights=50, cached=4)
    assert sizes.forward_operations(10, 3, 5) == 2 * 100 * 10 + 4 * 8 * 5 * 10 + 2 * 50 * 3


def test_an_update_takes_three_passes_and_with_adapters_two() -> None:
    full, cluster = pass_work(plan_input(), Cluster()), Cluster()
    sizes = DecoderSizes.of(MetaNetworks.of(plan_input()).model)
    forward = sizes.forward_operations(12 * 64, 12 * 20, 32)
    assert full.update == 3 * forward
    assert full.score_pass == 0, "one update of a rollout uses its own log-probs"
    with_critic = pass_work(plan_input(critic=True), cluster)
    assert with_critic.update == full.update + 3 * sizes.forward_operations(12 * 64, 0, 32)
    assert with_critic.score_pass == sizes.forward_operations(12 * 64, 0, 32)
    adapted = pass_work(plan_input(lora=LoRA(rank=1, alpha=1)), cluster)
    assert adapted.update == pytest.approx(2 / 3 * full.update, rel=0.15)
    assert full.decode == 20 * sizes.step_bytes(2, 12, 32)


def test_more_passes_over_a_rollout_take_as_many_updates_and_need_old_log_probs() -> None:
    given = plan_input()
    twice = replace(given, rollout=replace(given.rollout, ppo_epochs=2))
    once, both = pass_work(given, Cluster()), pass_work(twice, Cluster())
    assert both.update == 2 * once.update
    assert (once.score_pass, both.score_pass) == (0, once.update / 3)


@pytest.mark.parametrize("old", ["recomputed", "sampled"])
def test_a_value_heads_values_need_no_pass(old: Literal["recomputed", "sampled"]) -> None:
    """They come with the sampled tokens; several updates need old log-probs, unless sampled."""
    given = plan_input()
    shared = replace(
        given,
        algorithm=replace(given.algorithm, advantage=GAE(critic=CriticConfig(backbone="shared"))),
        optimization=replace(given.optimization, old_log_probs=old),
    )
    twice = replace(shared, rollout=replace(shared.rollout, ppo_epochs=2))
    sizes = DecoderSizes.of(MetaNetworks.of(shared).model)
    sampled = 12 * shared.sequences * shared.sampled_tokens
    whole = sizes.forward_operations(12 * 64, sampled, 32)
    assert pass_work(shared, Cluster()).score_pass == 0
    assert pass_work(twice, Cluster()).score_pass == (whole if old == "recomputed" else 0)


def test_more_processes_share_the_groups_and_a_quicker_device_takes_less() -> None:
    one, three = (pass_work(plan_input(), Cluster(n)) for n in (1, 3))
    assert one.update == 3 * three.update
    seconds = one.seconds(RATES)
    assert list(seconds) == ["rollout", "score pass", "update"]
    assert seconds["update"] == one.update / 1e9
    assert seconds["rollout"] == pytest.approx(one.prefill / 5e8 + one.decode / 2.5e5)
    quicker = one.seconds(replace(RATES, products=2e9, copies=2e6))
    assert quicker == pytest.approx({phase: value / 2 for phase, value in seconds.items()})
    assert "measured on one" in describe_seconds(seconds, RATES)


def test_rates_come_back_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    RATES.save(path)
    assert Rates.load(path) == RATES
    content = json.loads(path.read_text())
    wrong: tuple[object, ...] = (
        {**content, "update": 0},
        {**content, "copies": "fast"},
        {**content, "more": 1},
        {"device": "one"},
        [],
    )
    for each in wrong:
        path.write_text(json.dumps(each))
        with pytest.raises(ConfigError, match=r"--rates .*rates\.json"):
            Rates.load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Rates.load(tmp_path / "none.json")


def test_the_command_prints_seconds_with_rates_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    RATES.save(tmp_path / "rates.json")
    assert main(["plan", "--config", "tiny.yaml", "--rates", "rates.json"]) == 0
    assert "measured on one" in capsys.readouterr().out
    assert main(["plan", "--config", "tiny.yaml"]) == 0
    assert "seconds of an iteration" not in capsys.readouterr().out
    assert main(["plan", "--table", "--rates", "rates.json"]) == BAD_CONFIG
    assert "--rates is given" in capsys.readouterr().err
