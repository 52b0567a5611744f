"""The configuration as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.runtime.findings import Finding, ok


def check_configuration(subject: ExaminedRun) -> Iterator[Finding]:
    """Build all parts, none of which has weights; a wrong key or value is raised here."""
    parts, data = subject.parts, subject.data
    parts.check_run()
    rollout, model = data.rollout, parts.model
    trajectories = rollout.num_groups * rollout.online_k * rollout.group_size
    envs = " and ".join(type(env).__name__ for env in data.envs.values())
    yield ok(
        f"{envs}, {type(model.trainable.policy).__name__}, "
        f"{type(model.algorithm.advantage).__name__}: {parts.trainer_config.max_epochs} iterations "
        f"of {trajectories} trajectories, {data.warm_start.iterations} of imitation before them"
    )
