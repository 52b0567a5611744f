"""Other processes: an environment plays there as it does here, whatever their hash seed is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import EnvError
from ragen_pl.envs.contract.differences import difference
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import Trial, play
from ragen_pl.envs.workers import EnvHost
from ragen_pl.runtime.findings import Finding, failure, ok

_SEEDS = 4
_LIMIT_S = 30.0
_HASH_SEED = "PYTHONHASHSEED"


def check_processes(subject: ExaminedEnv) -> Iterator[Finding]:
    """Play the same episodes here and in worker processes with other hash seeds."""
    here = _Played(subject, subject.copy(), subject.in_time(range(_SEEDS), share=0.5))
    seeds = [trial.seed for trial in here.trials]
    hash_seeds = list[str]()
    for number in subject.in_time(range(1, 3)):  # a slow start leaves no time for a second process
        hash_seed = str(number)
        host = EnvHost(1, _LIMIT_S)
        try:
            with _environment_variable(_HASH_SEED, hash_seed):
                there = _Played(subject, host.wrap(subject.env), seeds)
        except ValueError as error:
            yield failure(str(error), "hold nothing that cannot be pickled before the first reset")
            return
        except EnvError as error:
            yield failure(
                f"in a process of its own: {error}",
                "define the class in a module that can be imported, and import in it what it needs",
            )
            return
        finally:
            host.close()
        if there.text != here.text:
            yield failure(
                f"in a process with {_HASH_SEED}={hash_seed}, {here.first_difference(there)}",
                "sort before choosing from a set, and use hashlib in place of hash(), which differ "
                "between processes",
            )
            return
        hash_seeds.append(hash_seed)
    yield ok(
        f"{len(seeds)} episodes are the same in other processes, with {_HASH_SEED} "
        f"{' and '.join(hash_seeds)}"
    )


class _Played:
    """Episodes that an environment plays, with all that it says of itself."""

    def __init__(self, subject: ExaminedEnv, env: TextEnv, seeds: Iterable[int]) -> None:
        self.trials: list[Trial] = []
        self.facts: list[str] = []
        for seed in seeds:
            self.trials.append(play(env, seed, seed, subject.able_player))
            self.facts.append(f"{env.instruction} {env.actions} {env.state_hash()}")

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.trials} {self.facts}"

    def first_difference(self, other: _Played) -> str:
        """Describe where two of them part."""
        for mine, its in zip(self.trials, other.trials, strict=True):
            if mine.observation != its.observation:
                at = difference(mine.observation, its.observation)
                return f"the start of seed {mine.seed} is another one: here and there {at}"
            if mine != its:
                at = difference(asdict(mine), asdict(its))
                return f"the episode of seed {mine.seed} takes another course: here and there {at}"
        return "the instruction, the actions or the final state are others"


@contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
