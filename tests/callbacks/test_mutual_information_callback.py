"""The callback tells a template from a thought, on any number of ranks, and leaves no trace."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

from callbacks import MutualInformation
from callbacks.mutual_information import first_turns, uniform_turns
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.types import EpisodeId, Request, Sampling, TrajectoryGroup, Turn
from tests.support.doubles import make_trajectory, make_turn

STATES = range(20, 28)
RECITALS = range(30, 34)
OPENING = 10
SMALL = EmbeddedModel(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2)


def prompt(state: int) -> tuple[int, ...]:
    return 3, state, OPENING


def taught(grounded: bool) -> LanguageModel:
    """Teach a tiny policy to name the state it sees and then to recite, or to recite alone.

    Both end in one of four equally likely words, so both keep an entropy.
    """
    language = replace(SMALL, num_key_value_heads=1).build([f"w{i}" for i in range(40)], seed=0)
    policy = Policy(language.model)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    pairs = [(s, r) for s in STATES for r in RECITALS]
    rows = torch.tensor([[*prompt(s), s if grounded else 29, r] for s, r in pairs])
    mask = torch.tensor([False] * 3 + [True] * 2).expand_as(rows)
    for _ in range(120):
        log_probs = policy(rows, mask, torch.ones_like(mask)).log_probs
        optimizer.zero_grad()
        (-log_probs.sum() / len(rows)).backward()
        optimizer.step()
    return language


def play(language: LanguageModel, turns: int = 2, members: int = 4) -> list[TrajectoryGroup]:
    """Sample thoughts of two tokens; a group is a state, later turns see the following states."""
    engine = InProcessSampler(language.model, stop_id=0, seed=1, max_context=64)
    groups = []
    for group_id, state in enumerate(STATES):
        rows = []
        for member in range(members):
            played: list[Turn] = []
            for turn in range(turns):
                here = prompt(STATES[(state + turn * (member + 1)) % len(STATES)])
                request = Request(here, EpisodeId(0, group_id, member), turn)
                (completion,) = engine([request], Sampling(1.0, 2))
                engine.reset()
                played.append(
                    replace(make_turn(), prompt_ids=here, completion=completion, thought_tokens=2)
                )
            rows.append(make_trajectory(played, group_id=group_id, member=member))
        groups.append(TrajectoryGroup(group_id, group_id, tuple(rows)))
    return groups


def learner(language: Any) -> Any:
    return SimpleNamespace(
        seed=5, language=language, optimization=Optimization(), rollout_weights=nullcontext
    )


def trainer(think: bool = True) -> Any:
    return SimpleNamespace(
        precision_plugin=SimpleNamespace(forward_context=nullcontext),
        datamodule=SimpleNamespace(prompts=SimpleNamespace(think=think), rollout=RolloutConfig()),
        is_global_zero=True,
        progress_bar_callback=None,
    )


def measured(
    language: LanguageModel, groups: list[TrajectoryGroup], **options: Any
) -> dict[str, float]:
    callback = MutualInformation(every_n_iterations=1, num_responses=4, **options)
    module = cast(Any, learner(language))
    callback.begin_iteration(0)
    callback.on_rollout_end(trainer(), module, groups)
    return {name.removeprefix("diagnostics/"): value for name, value in callback.recorded.items()}


@pytest.fixture(scope="module")
def grounded() -> LanguageModel:
    return taught(grounded=True)


@pytest.fixture(scope="module")
def template() -> LanguageModel:
    return taught(grounded=False)


def test_a_template_and_a_thought_are_told_apart(
    grounded: LanguageModel, template: LanguageModel
) -> None:
    """Both have the entropy of four recitals; only information tells them apart."""
    real, fake = measured(grounded, play(grounded)), measured(template, play(template))
    for found in (real, fake):
        assert found["conditional_entropy_first_turn"] == pytest.approx(np.log(4), abs=0.2)
    assert real["mi_first_turn"] == pytest.approx(np.log(8), abs=0.2)
    assert fake["mi_first_turn"] == pytest.approx(0.0, abs=0.05)
    assert real["mi_z_first_turn"] > 10
    assert abs(fake["mi_z_first_turn"]) < 4
    assert real["retrieval_first_turn"] == pytest.approx(7 / 8)
    assert abs(fake["retrieval_first_turn"]) < 0.25


def test_trajectory_uniform_sees_later_turns(
    grounded: LanguageModel, template: LanguageModel
) -> None:
    """The policies were taught on first turns alone; the later ones only have to be scored."""
    real, fake = measured(grounded, play(grounded, 1)), measured(template, play(template, 1))
    assert real["mi_trajectory_uniform"] > 1.5 > 0.1 > abs(fake["mi_trajectory_uniform"])
    longer = measured(grounded, play(grounded, 3))
    assert longer["mi_trajectory_uniform"] != real["mi_trajectory_uniform"]


def test_per_token_divides(grounded: LanguageModel) -> None:
    groups = play(grounded)
    per_thought, per_token = (
        measured(grounded, groups, normalization=n) for n in ("sequence", "token")
    )
    for name in ("mi_first_turn", "conditional_entropy_first_turn"):
        assert per_token[name] == pytest.approx(per_thought[name] / 2)


def test_nothing_to_compare_is_not_logged(grounded: LanguageModel) -> None:
    groups = play(grounded, 1)
    assert measured(grounded, [groups[0]]) == {}
    mute = replace(groups[0].trajectories[0].turns[0], thought_tokens=0)
    silent = [
        replace(g, trajectories=tuple(replace(t, turns=(mute,)) for t in g.trajectories))
        for g in groups
    ]
    assert measured(grounded, silent) == {}


def test_only_every_nth_iteration(grounded: LanguageModel) -> None:
    callback = MutualInformation(every_n_iterations=3, num_prompts=2)
    module = cast(Any, learner(grounded))
    groups, due = play(grounded, 1), []
    for iteration in range(6):
        callback.begin_iteration(iteration)
        callback.on_rollout_end(trainer(), module, groups)
        due.append(bool(callback.recorded))
        callback._recorded = {}
    assert due == [False, False, True, False, False, True]


def test_without_thinking_it_says_so_and_rests(
    grounded: LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = MutualInformation(every_n_iterations=1)
    nothing = cast(Any, None)
    callback.setup(trainer(think=False), nothing, "fit")
    assert "mutual information is not measured" in capsys.readouterr().out
    callback.on_rollout_end(trainer(think=False), nothing, play(grounded, 1))
    assert callback.recorded == {}


def test_draws_are_distinct_and_depend_on_the_generator_alone() -> None:
    thoughtful = {(g, m): [0, 1, 2][m % 3 :] for g in range(6) for m in range(5)}
    thoughtful[2, 4] = []
    drawn = first_turns(thoughtful, 4, 2, np.random.default_rng(0))
    assert len(set(drawn)) == 8
    assert len({group for group, _, _ in drawn}) == 4
    assert all(turn == 0 and 0 in thoughtful[g, m] for g, m, turn in drawn)
    backwards = dict(reversed(thoughtful.items()))
    assert first_turns(backwards, 4, 2, np.random.default_rng(0)) == drawn
    uniform = uniform_turns(thoughtful, 100, np.random.default_rng(1))
    assert [key[:2] for key in uniform] == [
        place for place in sorted(thoughtful) if place != (2, 4)
    ]
    assert all(turn in thoughtful[g, m] for g, m, turn in uniform)
    assert len({turn for _, _, turn in uniform}) == 3


@pytest.mark.parametrize(
    "options", [{"every_n_iterations": 0}, {"num_prompts": 1}, {"num_responses": 0}]
)
def test_bad_values_are_named(options: dict[str, Any]) -> None:
    (key,) = options
    with pytest.raises(ValueError, match=f"{key} is"):
        MutualInformation(**options)


def _on_rank(place: int, folder: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=place, world_size=2
    )
    language = replace(SMALL, num_key_value_heads=1).build([f"w{i}" for i in range(40)], seed=0)
    found = measured(language, play(language)[place::2], num_prompts=5)
    torch.save(found, f"{folder}/{place}.pt")
    distributed.destroy_process_group()


@pytest.mark.run
def test_two_ranks_measure_what_one_does(tmp_path: Path) -> None:
    language = replace(SMALL, num_key_value_heads=1).build([f"w{i}" for i in range(40)], seed=0)
    alone = measured(language, play(language), num_prompts=5)
    assert len(alone) == 8
    start_processes(  # type: ignore[no-untyped-call]
        _on_rank, (str(tmp_path),), nprocs=2, start_method="spawn"
    )
    first, second = (torch.load(tmp_path / f"{place}.pt") for place in range(2))
    assert first == second
    assert first == pytest.approx(alone, abs=1e-5)
