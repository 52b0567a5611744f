"""The laboratory's runs have the configuration of their names, and can start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import callbacks
from benchmarks import rollback_study
from benchmarks.laboratory import (
    ENVIRONMENTS,
    RATES,
    RECIPES,
    VARIANTS,
    WHOLE,
    Study,
    parse,
    runs,
    variants_named,
    warm_start,
)
from benchmarks.laboratory_report import COMPARISONS, NAMES, markdown, write_report
from benchmarks.quantized_sampler import Quantized
from callbacks import EchoTrapDetector, PolicyChange
from ragen_pl.algorithms.config import EntropySmoothing, KLPenalty
from ragen_pl.algorithms.estimators import GAE, GRPO, GiGPO
from ragen_pl.algorithms.policy_losses import CISPO, GSPO, SAPO, Clip, ClipCov, KLCov
from ragen_pl.cli.configured_parts import Unstarted
from ragen_pl.rollout.engines import InProcess
from ragen_pl.training.trainer import rollout_callbacks
from tests.benchmarks.test_collapse_study import run as summary
from tests.cli.test_configs import assemble, filter_of

NAMES_OF_VARIANTS = tuple(variant.name for variant in VARIANTS)
NAMES_OF_RECIPES = tuple(variant.name for variant in RECIPES)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def assembled(tmp_path: Path, **study: Any) -> Unstarted:
    (run,) = runs(Study(seeds=1, first_seed=3, rates=(3e-4,), **study), tmp_path)
    return assemble(*run.cell.arguments)


@pytest.mark.parametrize("variant", [n for n in NAMES_OF_VARIANTS if n not in NAMES_OF_RECIPES])
def test_a_variant_has_the_configuration_of_its_name(tmp_path: Path, variant: str) -> None:
    app = assembled(tmp_path, variants=(variant,), keep=0.25)
    algorithm, rollout = app.model.algorithm, app.datamodule.rollout
    is_safe = "-s-" in variant
    filters, clips_higher, has_no_kl = (
        is_safe or variant.endswith(part) for part in ("filter", "clip-higher", "no-kl")
    )
    assert isinstance(algorithm.advantage, GRPO if variant.startswith("grpo") else GAE)
    assert isinstance(algorithm.policy_loss, Clip)
    assert algorithm.policy_loss.clip_high == (0.28 if clips_higher else 0.2)
    assert algorithm.kl == (None if has_no_kl else KLPenalty(0.001, "k3", "loss"))
    assert (filter_of(app).rule is not None) == filters
    assert app.config["fit"].filter.keep_fraction == (0.25 if filters else 1.0)
    assert rollout.scale_updates == variant.endswith("iterations")
    assert rollout.num_groups * rollout.group_size == 20
    assert (rollout.online_k, rollout.ppo_epochs) == (4, 1)
    assert app.model.optimization.rl_factor(50, 60) == 1.0
    assert (app.model.optimization.lr, app.model.seed) == (3e-4, 3)


LOSSES = {
    "sampo": GSPO,
    "sapo": SAPO,
    "cispo": CISPO,
    "clip-cov": ClipCov,
    "kl-cov": KLCov,
}


@pytest.mark.parametrize("variant", NAMES_OF_RECIPES)
def test_a_recipe_differs_from_grpo_in_what_its_name_says(tmp_path: Path, variant: str) -> None:
    app = assembled(tmp_path, variants=(variant,))
    algorithm, data = app.model.algorithm, app.datamodule
    assert type(algorithm.advantage) is (GiGPO if variant == "sampo" else GRPO)
    assert type(algorithm.policy_loss) is LOSSES.get(variant, Clip)
    assert (data.dynamic_sampling is not None) == (variant == "sampo")
    smoothing = algorithm.entropy.smoothing
    assert isinstance(smoothing, EntropySmoothing) == (variant == "epo")
    is_wrong = variant in ("mismatch", "tis")
    assert type(app.model.engine) is (Quantized if is_wrong else InProcess)
    assert algorithm.tis_cap == (2.0 if variant == "tis" else None)
    assert algorithm.kl is None
    assert filter_of(app).rule is None
    assert data.rollout.num_groups * data.rollout.group_size == 20
    assert (data.rollout.online_k, data.rollout.ppo_epochs) == (4, 1)
    assert (app.model.optimization.lr, app.model.seed) == (3e-4, 3)


def test_recipes_are_named_together() -> None:
    args = parse(["out", "--variants", "ppo", "recipes"])
    assert variants_named(args.variants) == ("ppo", *NAMES_OF_RECIPES)
    assert not set(NAMES_OF_RECIPES) & set(WHOLE)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_one_update_has_the_trajectories_of_four(tmp_path: Path, env: str) -> None:
    several, one = (
        assembled(tmp_path, env=env, variants=("grpo",), one_update=each) for each in (False, True)
    )
    rollouts = [app.datamodule.rollout for app in (several, one)]
    assert [each.num_groups * each.online_k for each in rollouts] == [20, 20]
    assert [each.is_on_policy for each in rollouts] == [False, True]
    assert rollouts[0].max_turns == rollouts[1].max_turns
    for app in (several, one):  # every sign is measured in all runs
        (change,) = [c for c in rollout_callbacks(app.trainer) if isinstance(c, PolicyChange)]
        assert change.always


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_runs_begin_at_the_warm_start_and_are_not_stopped(tmp_path: Path, env: str) -> None:
    before = assemble(*warm_start(env).arguments)
    after = assembled(tmp_path, env=env, variants=("grpo",), iterations=7)
    assert before.datamodule.warm_start.iterations == before.trainer.max_epochs
    assert after.datamodule.warm_start.iterations == 0
    assert after.trainer.max_epochs == 7
    assert after.model.trainable.policy.weights == str(tmp_path / "warm_start" / "policy" / "last")
    words = [list(app.datamodule.vocabulary()) for app in (before, after)]
    assert words[0] == words[1]
    (detector,) = [c for c in rollout_callbacks(after.trainer) if isinstance(c, EchoTrapDetector)]
    assert not detector.stop


def test_every_seed_is_whole_before_the_next(tmp_path: Path) -> None:
    planned = list(runs(Study(seeds=2, first_seed=5), tmp_path))
    size = len(WHOLE) * len(RATES["sokoban"])
    assert [run.seed for run in planned] == [5] * size + [6] * size
    assert len({run.cell.name for run in planned}) == 2 * size
    assert {name for names in COMPARISONS.values() for name in names} == set(NAMES)
    assert set(NAMES) == set(NAMES_OF_VARIANTS)


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fell: dict[str, Any] = {"outcome": "collapsed", "collapsed_at": 30, "final": 0.1}
    found = [
        summary(4e-4, seed=0, amber=20, red=31, seconds=40.0, **fell),
        summary(4e-4, seed=1, amber=25, red=None, seconds=40.0, **fell),
        summary(4e-4, seed=0, variant="ppo-s-iterations", seconds=30.0, update_tokens=250.0),
        summary(4e-4, seed=1, variant="ppo-s-iterations", seconds=20.0, update_tokens=250.0),
    ]
    text = markdown(found, 5)
    assert "4 of 5 runs" in text
    assert "| StarPO, PPO | 0.0004 | 2/2 | 0/2 | 30 | 80 [80, 80] | 10 [10, 10] |" in text
    assert "| StarPO, PPO | 0.0004 | 2/2 |\n" in text  # breaks there, in all
    assert "| StarPO-S, PPO, equal iterations | above 0.0004 | 0/2 |" in text
    assert "| StarPO-S, PPO, equal iterations | 2 | 38% | 75% | 0% |" in text
    assert "| all | amber | 2 | 7.5 | 5 | 0 | 0 of 2 healthy |" in text
    assert "| all | red | 2 | never | never | 2 | 0 of 2 healthy |" in text
    write_report(tmp_path, [])
    assert "nothing to report" in capsys.readouterr().out


def test_the_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.laboratory_figure import draw, separating_rate

    fell: dict[str, Any] = {"outcome": "collapsed", "collapsed_at": 3, "amber": 1}
    runs_ = [summary(1e-4), summary(4e-4, **fell), summary(8e-4, **fell)]
    runs_ += [summary(rate, variant="ppo-s-updates") for rate in (1e-4, 4e-4)]
    runs_ += [summary(8e-4, variant="ppo-s-updates", **fell)]
    assert separating_rate(runs_) == 4e-4
    metrics = ("success", "in_group_std", "entropy", "return")
    history: dict[str, list[float | None]] = {f"rollout/{m}": [0.5, 0.4, 0.3] for m in metrics}
    history["train/grad_norm_policy"] = [None, 1.0, 2.0]
    draw(tmp_path / "none.png", [(summary(1e-4, variant="sapo"), history)])
    assert not (tmp_path / "none.png").exists(), "recipes have no column of their own"
    runs_ += [summary(8e-4, variant="clip-cov"), summary(8e-4, variant="ppo-s-hindsight", **fell)]
    draw(tmp_path / "figure.png", [(run, history) for run in runs_])
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


# --- rollback -----------------------------------------------------------------------------------


def results(success: list[float], eval_set: float, **more: Any) -> dict[str, Any]:
    history: dict[str, Any] = {"rollout/success": success}
    history["collapse/level"] = [0.0, 1.0] + [0.0] * 18 + [1.0, 1.0, 2.0, 2.0] + [0.0] * 16
    return {"history": history, "evaluations": [{"policy": "final", "success": eval_set}], **more}


def test_a_recovery_is_measured_from_before_the_alarm() -> None:
    events = [{"iteration": 24}]
    rising = results([0.6] * 22 + [0.2] * 2 + [0.9] * 16, 0.85, rollbacks=events)
    falling = results([0.6] * 22 + [0.2] * 18, 0.2)
    found = rollback_study.compare(rising, falling, 4)
    assert (found.rollbacks, found.alarm) == (1, 20)
    assert [found.before, found.peak_before] == pytest.approx([0.6, 0.6])
    assert [found.end_with, found.end_without] == pytest.approx([0.9, 0.2])
    assert found.is_shown
    assert not rollback_study.compare(rising, rising, 4).is_shown
    assert "1 of 1 seeds" in rollback_study.markdown([found])
    idle = rollback_study.compare(results([0.6] * 40, 0.6, rollbacks=[]), falling, 4)
    assert (idle.rollbacks, idle.alarm, idle.is_shown) == (0, None, False)
    with pytest.raises(ValueError, match="rollbacks"):
        rollback_study.compare(falling, falling, 4)


def test_the_pairs_differ_in_rollback_alone(tmp_path: Path) -> None:
    study = Study(rates=(8e-4,), seeds=2, variants=("grpo",))
    (seed, with_it, without), _ = rollback_study.pairs(study, 3, tmp_path)
    assert seed == 0
    assert with_it.arguments == (*without.arguments, "--rollback.times", "3")
    (_, quarter, same), _ = rollback_study.pairs(study, 3, tmp_path, 0.25)
    assert quarter.arguments == (*with_it.arguments, "--rollback.lr_factor", "0.25")
    assert (same, quarter.name) == (without, f"{with_it.name}-0.25")
    json.dumps(without.arguments)
    if hasattr(callbacks, "Rollback"):
        assemble(*with_it.arguments)
