"""The speed benchmarks play the stated workload, and the engine reads every token once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from benchmarks import throughput, vs_trl
from benchmarks.iteration import PHASES, Bench, Iteration, limits, phase_tokens
from benchmarks.roofline import timed
from benchmarks.samplers import Setting, as_trl, ours, trl
from benchmarks.steps import Steps
from benchmarks.workload import Clerk, RandomModel, ReadAgain, Workload, pieces
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.engines.in_process import InProcessSampler

MODEL = RandomModel(hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2)
SMALL = Workload(num_groups=2, group_size=3, turns=2, words=5, response=4)


def tokens_read(turns: int, *, engine: bool) -> int:
    """Count what is read of a dialogue whose turns are all alike."""
    workload = replace(SMALL, turns=turns, response=1)
    language = MODEL.build(pieces(), 0)
    decoder = InProcessSampler(
        language.model, stop_id=-1, seed=0, max_context=workload.config.max_context
    )
    reader = decoder if engine else ReadAgain(language.model)
    workload.play(language, reader, 0)
    return reader.tokens_processed


def second_differences(values: list[int]) -> list[int]:
    first = [after - before for before, after in itertools.pairwise(values)]
    return [after - before for before, after in itertools.pairwise(first)]


def test_the_engine_reads_linearly_more_with_turns_and_the_plain_loop_does_not() -> None:
    turns = (1, 5, 9, 13)
    assert second_differences([tokens_read(n, engine=True) for n in turns]) == [0, 0]
    assert min(second_differences([tokens_read(n, engine=False) for n in turns])) > 0


def test_every_trajectory_has_the_length_of_the_workload() -> None:
    language = MODEL.build(pieces(), 0)
    groups = SMALL.play(language, ReadAgain(language.model), 0)
    assert len(groups) == 2
    for trajectory in (each for group in groups for each in group.trajectories):
        assert [len(turn.completion.token_ids) for turn in trajectory.turns] == [4, 4]
    lengths = {
        len(turn.prompt_ids) for group in groups for t in group.trajectories for turn in t.turns[1:]
    }
    assert len(lengths) == 1
    whole = sum(len(turn.prompt_ids) + 4 for turn in groups[0].trajectories[0].turns)
    assert SMALL.length == whole


def test_the_engine_and_the_plain_loop_play_equally_long_dialogues() -> None:
    """What an engine does not see stop is closed for it, so they must agree on what stopped."""
    language = MODEL.build(pieces(), 0)
    engine = InProcessSampler(
        language.model, stop_id=-1, seed=0, max_context=SMALL.config.max_context
    )
    for reader in (engine, ReadAgain(language.model)):
        for group in SMALL.play(language, reader, 0):
            for trajectory in group.trajectories:
                assert sum(len(turn.prompt_ids) + 4 for turn in trajectory.turns) == SMALL.length


def test_the_workload_env_is_deterministic_and_restores_its_state() -> None:
    one, other = Clerk(), Clerk()
    assert one.reset(seed=4) == other.reset(seed=4)
    assert one.step("a")[0] != one.render_text() or one.answers == 1
    other.set_state(one.get_state())
    assert one.render_text() == other.render_text()


def test_a_vocabulary_smaller_than_the_dialogue_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary is 10"):
        RandomModel(vocabulary=10).build(pieces(), 0)


def test_steps_hand_over_and_pass_errors_on() -> None:
    done: list[int] = []

    def loop() -> None:
        for number in range(2):
            done.append(number)
            steps.boundary()
        raise OSError("the end")

    steps = Steps(loop)
    assert done == []
    steps.step()
    assert done == [0]
    steps.step()
    assert done == [0, 1]
    with pytest.raises(OSError, match="the end"):
        steps.step()


@pytest.mark.parametrize("lora", [None, LoRA(4, 8)], ids=["all weights", "adapters"])
def test_a_step_of_ours_is_an_iteration_that_learns(lora: LoRA | None) -> None:
    steps = ours(Setting(SMALL, MODEL, bf16=False, compiled=False, steps=2, threads=1, lora=lora))
    whole = [timed(steps.step) for _ in range(2)]
    assert all(0 < part < all_ for part, all_ in zip(steps.rollout_seconds, whole, strict=True))


@pytest.mark.run
@pytest.mark.parametrize("lora", [None, LoRA(4, 8)], ids=["all weights", "adapters"])
def test_a_step_of_trl_on_the_same_dialogues(lora: LoRA | None) -> None:
    pytest.importorskip("trl", reason="needs the extra bench: pip install -e '.[bench]'")
    steps = trl(Setting(SMALL, MODEL, bf16=False, compiled=False, steps=2, threads=1, lora=lora))
    whole = [timed(steps.step) for _ in range(2)]
    assert all(0 < part < all_ for part, all_ in zip(steps.rollout_seconds, whole, strict=True))


def test_frozen_weights_cost_no_gradient_in_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vs_trl, "gemm_rate", lambda *_: 1e9)
    ratio = vs_trl.limit(SMALL, MODEL, "fp32", lora=LoRA(4)) / vs_trl.limit(SMALL, MODEL, "fp32")
    assert ratio == pytest.approx(4 / 3)


def test_trl_gets_the_same_tokens_and_the_same_mask() -> None:
    language = MODEL.build(pieces(), 0)
    groups = SMALL.play(language, ReadAgain(language.model), 0)
    played = [trajectory for group in groups for trajectory in group.trajectories]
    columns = as_trl(played)
    for place, trajectory in enumerate(played):
        ids = [*columns["prompt_ids"][place], *columns["completion_ids"][place]]
        turns = trajectory.turns
        assert ids == [
            token for turn in turns for token in (*turn.prompt_ids, *turn.completion.token_ids)
        ]
        assert sum(columns["env_mask"][place]) == SMALL.turns * SMALL.response
        assert len(columns["env_mask"][place]) == len(columns["completion_ids"][place])


def test_phases_are_timed_counted_and_bounded() -> None:
    bench = Bench(MODEL, SMALL, torch.float32)
    iteration = Iteration(bench)
    assert iteration.critic is not None
    before = [p.clone() for p in (*iteration.policy.parameters(), *iteration.critic.parameters())]
    seconds, rollout = iteration.medians(1)
    assert tuple(seconds) == PHASES
    assert min(seconds.values()) > 0
    counts = phase_tokens(SMALL, rollout)
    unread = SMALL.trajectories  # each row's last token
    iteration.decoder.tokens_processed = 0
    iteration.run()
    assert iteration.decoder.tokens_processed == counts["prefill"] + counts["decode"] - unread
    assert min(limits(bench, rollout).values()) > 0
    after = (*iteration.policy.parameters(), *iteration.critic.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_tables_name_what_was_measured() -> None:
    rates = {"ours fp32": 6.0, "ours bf16": 9.0, "ours bf16 compiled": 10.0}
    rates |= {"trl fp32": 3.0, "trl bf16": 2.0, "trl bf16 compiled": 4.0}
    paces = {name: vs_trl.Pace(rate, 0.25, 1.5) for name, rate in rates.items()}
    ratios = vs_trl.against_trl(paces)
    assert ratios["ours / TRL, fp32"] == 2
    assert ratios["ours / TRL, bf16 compiled"] == 2.5
    assert ratios["ours / TRL, best against best"] == 2.5
    results = {
        "rollout": [{"turns": 5, "dtype": "fp32", "ours": 4.0, "generate": 2.0}],
        "training": {name: pace._asdict() for name, pace in paces.items()},
        "limit": {"fp32": 12.0, "bf16": 18.0},
        "peak_mebibytes": {"ours fp32": 100.0},
        "against_trl": ratios,
    }
    shown = vs_trl.table(results)
    assert "2.00" in shown
    assert "50 %" in shown
    assert ["6.00", "0.25", "1.50"] in [line.split()[2:5] for line in shown.splitlines()]
    by_value = {"turns": {"5": {"seconds": 1.0, "tokens_read": 1234.0}}}
    assert "1,234" in throughput.growth_table(by_value)
