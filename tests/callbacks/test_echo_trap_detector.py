"""The detector judges real trajectories, stops once, says why and survives a checkpoint."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from callbacks import EchoTrapDetector, PolicyChange, echo_trap_detector
from callbacks.echo_trap_detector import APPROX_KL, GRAD_NORM, measure
from callbacks.policy_change import UPDATE_KL, UPDATES
from ragen_pl.ops.echo_trap.assess import Assessment, Level
from ragen_pl.types import FormatFault, TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory, make_turn

MODULE = cast(Any, SimpleNamespace(phase="rl"))


def make_trainer() -> Any:
    return SimpleNamespace(
        should_stop=False,
        min_epochs=None,
        min_steps=None,
        current_epoch=0,
        global_step=0,
        is_global_zero=True,
        progress_bar_callback=None,
        callback_metrics={},
        loggers=[],
    )


def good() -> list[TrajectoryGroup]:
    return [make_group([0.0, 1.0, 1.0, 2.0], group_id=i) for i in range(4)]


def dead() -> list[TrajectoryGroup]:
    """Five turns without one valid action: the return is -0.5 for all."""
    turns = [make_turn(fault=FormatFault.NO_ANSWER, entropies=(0.01,)) for _ in range(5)]
    return [
        TrajectoryGroup(i, i, tuple(make_trajectory(turns, member=n) for n in range(4)))
        for i in range(4)
    ]


def judge_rollout(callback: EchoTrapDetector, trainer: Any, groups: list[TrajectoryGroup]) -> None:
    callback.on_collection_end(trainer, MODULE, groups)
    callback.on_rollout_end(trainer, MODULE, groups)


def test_what_dynamic_sampling_throws_away_is_judged_too() -> None:
    callback, trainer = EchoTrapDetector(), make_trainer()
    for part in (good(), dead()):
        callback.on_collection_end(trainer, MODULE, part)
    callback.on_rollout_end(trainer, MODULE, good())
    assert callback._histories[""][-1].zero_std_fraction == 0.5
    judge_rollout(callback, trainer, good())
    assert callback._histories[""][-1].zero_std_fraction == 0.0


def test_a_rollout_that_was_interrupted_is_not_judged_with_the_next() -> None:
    callback, trainer = EchoTrapDetector(), make_trainer()
    callback.on_collection_end(trainer, MODULE, dead())
    callback.on_rollout_start(trainer, MODULE, 0, 16)
    judge_rollout(callback, trainer, good())
    assert callback._histories[""][-1].zero_std_fraction == 0.0


def run(callback: EchoTrapDetector, trainer: Any, rollouts: list[list[TrajectoryGroup]]) -> int:
    for iteration, groups in enumerate(rollouts):
        callback.begin_iteration(iteration)
        judge_rollout(callback, trainer, groups)
        if trainer.should_stop:
            return iteration
    return -1


def test_measure() -> None:
    indicators = measure(dead(), 2.0, 0.01)
    assert indicators is not None
    assert indicators.mean_return == pytest.approx(-0.5)
    assert indicators.penalty_share == indicators.zero_std_fraction == 1.0
    assert indicators.success == indicators.valid_format == 0.0
    assert indicators.entropy == pytest.approx(0.01)
    assert indicators.grad_norm == 2.0
    assert measure([make_group([1.0], broken=[0])], None, None) is None


def half_hard(share: float, *, easy: float, hard: float) -> list[TrajectoryGroup]:
    """Play 20 starts of a world that is half hard; a ``share`` of them was chosen to be hard.

    Args:
        easy: Success at easy starts.
        hard: Success at hard ones, which also take longer responses, of higher entropy.
    """
    groups = []
    for number in range(20):
        is_hard = number < 20 * share
        wins = round(16 * (hard if is_hard else easy))
        entropies = (1.0,) * 6 if is_hard else (0.2,) * 2
        members = tuple(
            make_trajectory(
                [make_turn(float(n < wins), entropies=entropies)],
                group_id=number,
                member=n,
                success=n < wins,
            )
            for n in range(16)
        )
        weight = 0.5 / (share if is_hard else 1 - share)
        groups.append(TrajectoryGroup(number, number, members, weight=weight))
    return groups


def unweighted(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    return [replace(group, weight=1.0) for group in groups]


def test_indicators_do_not_depend_on_the_choice_of_starts() -> None:
    found = [measure(half_hard(share, easy=0.9, hard=0.3), 2.0, 0.01) for share in (0.5, 0.2, 0.9)]
    for indicators in found:
        assert astuple(cast(Any, indicators)) == pytest.approx(astuple(cast(Any, found[0])))
    plain = measure(unweighted(half_hard(0.9, easy=0.9, hard=0.3)), 2.0, 0.01)
    assert plain is not None
    assert plain.success < 0.4


def test_starts_that_become_harder_are_no_collapse() -> None:
    """A policy that learns is given ever more of what it cannot do yet."""
    rollouts = [
        half_hard(min(0.9, 0.1 + n / 25), easy=min(1.0, 0.8 + n / 100), hard=min(0.3, n / 100))
        for n in range(40)
    ]
    watched, plain = EchoTrapDetector(), EchoTrapDetector()
    assert {watch(watched, groups) for groups in rollouts} == {Level.GREEN}
    misled = {watch(plain, unweighted(groups)) for groups in rollouts}
    assert misled != {Level.GREEN}, "or there would be nothing to mend"


def test_a_collapse_under_a_curriculum_is_seen() -> None:
    healthy = [half_hard(0.7, easy=0.9, hard=0.3)] * 15
    broken = [half_hard(0.7, easy=0.1, hard=0.0)] * 15
    callback = EchoTrapDetector(stop=False)
    assert Level.RED in [watch(callback, groups) for groups in healthy + broken]


def watch(callback: EchoTrapDetector, groups: list[TrajectoryGroup]) -> Level:
    judge_rollout(callback, make_trainer(), groups)
    return callback.level


def test_a_good_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(EchoTrapDetector(), make_trainer(), [good()] * 40) == -1
    assert capsys.readouterr().out == ""


def test_a_policy_that_never_followed_the_format_gets_the_remedy_for_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing fell, so a lower learning rate is not what helps."""
    callback, trainer = EchoTrapDetector(baseline_iterations=5, patience=3), make_trainer()
    assert run(callback, trainer, [dead()] * 20) == 11
    *_, told = capsys.readouterr().out.splitlines()
    assert "no valid turn (baseline 100%), which pins the return at -0.5; this is no" in told
    assert "collapse: RL began so" in told
    assert told.endswith(
        "To teach the format, start with imitation (data.warm_start.iterations; its teacher is the "
        "environment's expert_turn, or another one of docs/teachers.md), or allow longer responses "
        "(data.rollout.max_response_tokens); echo_trap.stop false only warns."
    )
    assert "learning rate" not in told


def test_a_collapse_stops_the_run_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    callback, trainer = EchoTrapDetector(baseline_iterations=5, patience=3), make_trainer()
    stopped = run(callback, trainer, [good()] * 10 + [dead()] * 30)
    assert 10 < stopped <= 25
    assert callback.reason is not None
    assert callback.reason.startswith(
        "echo trap: red for 3 iterations in a row: 97% of trajectories hold no "
    )
    assert "no collapse" not in callback.reason
    printed = capsys.readouterr().out
    assert f"stopping at iteration {stopped + 1}" in printed
    assert callback.recorded["collapse/level"] == 2.0
    assert callback.recorded["collapse/in_group_std_ratio"] < 0.5


def test_a_policy_that_never_answers_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    run(EchoTrapDetector(), make_trainer(), [dead(), dead()])
    (line,) = capsys.readouterr().out.splitlines()
    told = "no turn of the first RL collection follows the response format"
    assert f"{told} (100% no answer in the format's tags), so" in line
    assert "data.warm_start.iterations" in line


def test_a_run_that_must_go_on_is_stopped_when_it_may_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    callback, trainer = EchoTrapDetector(baseline_iterations=5, patience=3), make_trainer()
    rollouts = [good()] * 10 + [dead()] * 30
    trainer.min_epochs = 35
    for iteration, groups in enumerate(rollouts):
        trainer.current_epoch = iteration
        callback.begin_iteration(iteration)
        judge_rollout(callback, trainer, groups)
        if trainer.should_stop:
            break
        assert callback.reason is None
        state = json.loads(json.dumps(callback.state_dict()))
        callback.load_state_dict(state)  # a resumed run does not wait for its patience once more
    assert iteration == 35
    printed = capsys.readouterr().out
    assert printed.count("trainer.min_epochs or min_steps is not reached") == 1
    assert "stopping at iteration 36" in printed
    assert callback.state_dict()["red_in_a_row"] == 0


def test_without_stop_it_only_warns(capsys: pytest.CaptureFixture[str]) -> None:
    callback, trainer = EchoTrapDetector(baseline_iterations=5, stop=False), make_trainer()
    assert run(callback, trainer, [good()] * 10 + [dead()] * 30) == -1
    assert callback.reason is None
    assert capsys.readouterr().out.count("echo trap red") == 1


def test_the_gradient_norm_is_that_of_the_update_before() -> None:
    callback, trainer = EchoTrapDetector(), make_trainer()
    trainer.callback_metrics[GRAD_NORM] = torch.tensor(3.0)
    callback.on_train_epoch_end(trainer, MODULE)
    judge_rollout(callback, trainer, good())
    assert callback._histories[""][-1].grad_norm == 3.0
    callback.on_train_epoch_end(trainer, cast(Any, SimpleNamespace(phase="warm_start")))
    judge_rollout(callback, trainer, good())
    assert callback._histories[""][-1].grad_norm is None


@pytest.mark.parametrize(
    ("moved", "updates", "known"),
    [(0.02, 4, 0.02), (0.0, 1, None), (5e-7, 1, None), (0.02, 1, None), (2e-9, 4, None)],
)
def test_only_several_updates_tell_how_far_they_went(
    moved: float, updates: int, known: float | None
) -> None:
    """One update starts from what played: its KL is 0, or rounding where that is recomputed."""
    callback, trainer = EchoTrapDetector(), make_trainer()
    trainer.callback_metrics |= {APPROX_KL: torch.tensor(moved), UPDATES: torch.tensor(updates)}
    callback.on_train_epoch_end(trainer, MODULE)
    judge_rollout(callback, trainer, good())
    assert callback._histories[""][-1].approx_kl == (known and pytest.approx(known))


@pytest.mark.parametrize("found", [{}, {UPDATES: 0.0}, {UPDATES: 2.0, APPROX_KL: float("nan")}])
def test_an_iteration_that_measured_no_update_tells_nothing_of_one(found: dict[str, float]) -> None:
    callback, trainer = EchoTrapDetector(), make_trainer()
    trainer.callback_metrics |= {name: torch.tensor(value) for name, value in found.items()}
    callback.on_train_epoch_end(trainer, MODULE)
    judge_rollout(callback, trainer, good())
    assert callback._histories[""][-1].approx_kl is None
    assert callback._histories[""][-1].grad_norm is None
    assert callback.level is Level.GREEN


@pytest.mark.parametrize(
    ("updates", "kl", "known"),
    [(1.0, 0.05, 0.05), (4.0, 0.05, None), (0.0, 0.05, None), (1.0, 1e-7, None)],
)
def test_the_kl_of_an_update_counts_where_there_is_one(
    updates: float, kl: float, known: float | None
) -> None:
    """Several updates have an approximate KL, by which they were graded; below rounding there was
    no step, such as one that was skipped."""
    callback, trainer = EchoTrapDetector(), make_trainer()
    trainer.callback_metrics |= {UPDATES: torch.tensor(updates), UPDATE_KL: torch.tensor(kl)}
    callback.on_train_epoch_end(trainer, MODULE)
    resumed = EchoTrapDetector()
    resumed.load_state_dict(json.loads(json.dumps(callback.state_dict())))
    for each in (callback, resumed):
        judge_rollout(each, make_trainer(), good())
        found = each._histories[""][-1]
        assert found.approx_kl is None
        assert found.update_kl == (known and pytest.approx(known))


def walk(
    callback: EchoTrapDetector, trainer: Any, step: float, rollouts: list[list[TrajectoryGroup]]
) -> list[tuple[Level, bool]]:
    """Play rollouts after updates of a length; return what each was judged."""
    judged = []
    for groups in rollouts:
        callback.begin_iteration(callback.positions.get("", 0))
        judge_rollout(callback, trainer, groups)
        judged.append((callback.level, callback.is_sound))
        trainer.callback_metrics |= {APPROX_KL: torch.tensor(step), UPDATES: torch.tensor(4.0)}
        callback.on_train_epoch_end(trainer, MODULE)
    return judged


def test_long_steps_are_said_and_so_is_the_harm_that_follows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    callback, trainer = EchoTrapDetector(baseline_iterations=5, stop=False), make_trainer()
    judged = walk(callback, trainer, 0.1, [good()] * 8)
    assert judged == [(Level.GREEN, True)] * 2 + [(Level.AMBER, True)] * 6
    assert capsys.readouterr().out.count("echo trap amber (iteration 3): updates have") == 1
    assert (Level.RED, False) in walk(callback, trainer, 0.1, [dead()] * 8)
    assert "echo trap red" in capsys.readouterr().out
    callback.rewind({"": 5})
    assert callback.is_sound
    assert callback.positions == {"": 5}


def test_an_environment_that_missed_rollouts_forgets_as_many_as_the_others() -> None:
    """Those of a collapsed policy may not stay in its baseline."""
    callback = EchoTrapDetector(baseline_iterations=3, stop=False)
    lake, room = ([replace(each, env=name) for each in good()] for name in ("lake", "room"))
    for number in range(6):
        judge_rollout(callback, make_trainer(), [*lake, *(room if number != 1 else [])])
        if number == 3:
            positions = callback.positions
    assert positions == {"lake": 4, "room": 3}
    callback.rewind(positions)
    assert callback.positions == positions
    assert callback.has_baseline


def test_a_resumed_run_knows_that_it_was_only_forewarned() -> None:
    first, second = EchoTrapDetector(), EchoTrapDetector()
    walk(first, make_trainer(), 0.1, [good()] * 4)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert (second.level, second.is_sound) == (first.level, first.is_sound) == (Level.AMBER, True)


def test_a_symptom_beside_long_steps_is_said_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Amber was said already, but for another reason."""
    callback, trainer = EchoTrapDetector(), make_trainer()
    told = iter([Assessment(Level.AMBER, "long", {}, forewarns=True)] * 2)
    sick = iter([Assessment(Level.AMBER, "sick", {})] * 2)
    monkeypatch.setattr(echo_trap_detector, "assess", lambda *_: next(told, None) or next(sick))
    for _ in range(4):
        judge_rollout(callback, trainer, good())
    assert capsys.readouterr().out.splitlines() == [
        "echo trap amber (iteration 1): long",
        "echo trap amber (iteration 1): sick",
    ]
    assert not callback.is_sound


def test_a_resumed_run_stops_where_the_whole_one_did() -> None:
    rollouts = [good()] * 10 + [dead()] * 30
    whole = run(EchoTrapDetector(baseline_iterations=5), make_trainer(), rollouts)
    first, second = (EchoTrapDetector(baseline_iterations=5) for _ in range(2))
    run(first, make_trainer(), rollouts[:12])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert 12 + run(second, make_trainer(), rollouts[12:]) == whole


def test_the_results_say_when_it_was_raised_and_why() -> None:
    first, second = (EchoTrapDetector(baseline_iterations=5, stop=False) for _ in range(2))
    run(first, make_trainer(), [good()] * 10)
    assert first.results() == {"alarm": []}
    run(first, make_trainer(), [dead()] * 20)
    raised = first.results()["alarm"]
    assert {entry["level"] for entry in raised} <= {"amber", "red"}
    assert raised[-1]["level"] == "red"
    assert all(entry["reason"] for entry in raised)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.results() == first.results()


def test_a_kl_that_would_be_measured_too_late_is_refused() -> None:
    """Both act at the end of an iteration, in the order of the trainer's callbacks."""
    detector, change = EchoTrapDetector(), PolicyChange()
    right, wrong = SimpleNamespace(callbacks=[change, detector]), [detector, change]
    detector.check_run(cast(Any, right), cast(Any, None))
    with pytest.raises(ValueError, match="list it before"):
        detector.check_run(cast(Any, SimpleNamespace(callbacks=wrong)), cast(Any, None))


@pytest.mark.parametrize("key", ["baseline_iterations", "patience"])
def test_bad_arguments_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is 0"):
        EchoTrapDetector(**cast(Any, {key: 0}))
