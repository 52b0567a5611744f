"""Thoughts: what the expert and hindsight write is true, as far as the environment can judge."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import ACTIONS_PER_TURN, Trial, has_expert_now, take
from ragen_pl.runtime.findings import Finding, ok, warning

_SEEDS = 16
_UNTRUE_SHARE = 0.05
"""Share of untrue thoughts that is told as wrong: an expert may err where much is hidden."""
_LUCKY_SHARE = 0.5
"""The same of thoughts in hindsight where there is noise: lucky plans are untrue, and left out."""


@dataclass(slots=True)
class _Judged:
    """Thoughts, as the environment judges them."""

    turns: int = 0
    silent: int = 0
    """Turns for which no thought was written."""
    judged: int = 0
    untrue: int = 0
    first: str = ""
    """The first untrue thought."""

    def add(self, env: CheckedEnv, seed: int, thought: str | None) -> None:
        """Count a thought of the current state; None where none was written."""
        self.turns += 1
        if thought is None:
            self.silent += 1
            return
        verdict = env.thought_correct(thought)
        self.judged += verdict is not None
        if verdict is False:
            self.untrue += 1
            self.first = self.first or f"{thought!r:.80} (seed {seed})"

    @property
    def told(self) -> str:
        return f"{self.untrue} of {self.judged} judged thoughts are untrue"


def check_thoughts(subject: ExaminedEnv) -> Iterator[Finding]:
    """Have the environment judge the expert's thoughts, and those of hindsight about episodes that
    succeeded."""
    facts, is_right = list[str](), True
    if subject.has_expert:
        expert = _of_expert(subject)
        if expert.untrue > _UNTRUE_SHARE * expert.judged:
            is_right = False
            yield warning(
                f"the expert: {expert.told}, first {expert.first}",
                "let expert_turn say what thought_correct accepts in the state before its actions, "
                "or mend thought_correct: a warm start imitates these thoughts, and rewards and "
                "scores of true thoughts count them as wrong",
            )
        facts.append(f"the expert: {expert.told}" if expert.judged else "")
    if type(subject.env).hindsight_turn is not TextEnv.hindsight_turn:
        hindsight = _of_hindsight(subject)
        if hindsight.turns and hindsight.silent == hindsight.turns:
            is_right = False
            yield warning(
                f"hindsight_turn writes nothing for any of {hindsight.turns} plans that succeed",
                "return a thought and the plan's first actions: hindsight imitation would learn "
                "nothing",
            )
        allowed = _LUCKY_SHARE if subject.noise.matters else _UNTRUE_SHARE
        if hindsight.untrue > allowed * hindsight.judged:
            is_right = False
            yield warning(
                f"hindsight_turn: {hindsight.told}, first {hindsight.first}",
                "let it say what thought_correct accepts of a plan that succeeds: hindsight "
                "imitation leaves solutions with untrue thoughts out",
            )
        facts.append(
            f"hindsight: {hindsight.told}, of {hindsight.turns} plans"
            if hindsight.judged
            else f"hindsight: thoughts for {hindsight.turns - hindsight.silent} of "
            f"{hindsight.turns} plans"
        )
    if is_right:
        yield ok("; ".join(filter(None, facts)) or "no thoughts are judged")


def _of_expert(subject: ExaminedEnv) -> _Judged:
    judged, env = _Judged(), CheckedEnv(subject.copy())
    for seed in subject.in_time(range(_SEEDS), share=0.5):
        env.reset(seed, seed)
        if not has_expert_now(env):
            continue
        rng, left, ended = random.Random(seed), env.max_actions, False
        while left > 0 and not ended and not env.is_lost():
            thought, actions = env.expert_turn(rng, min(ACTIONS_PER_TURN, left))
            judged.add(env, seed, thought)
            for action in actions:
                left, ended = left - 1, take(env, action).has_ended
                if ended:
                    break
    return judged


def _of_hindsight(subject: ExaminedEnv) -> _Judged:
    """Ask for hindsight's thoughts along episodes that succeeded, the expert's if there are any."""
    judged, env = _Judged(), CheckedEnv(subject.copy())
    solved = [trial for trial in subject.expert_play or subject.random_play if trial.success]
    for number in subject.in_time(range(len(solved)), share=0.5) if solved else ():
        _add_hindsight(judged, env, solved[number])
    return judged


def _add_hindsight(judged: _Judged, env: CheckedEnv, trial: Trial) -> None:
    env.reset(trial.seed, trial.seed)
    rest = tuple(step.action for step in trial.steps)
    while rest:
        given = env.hindsight_turn(rest, ACTIONS_PER_TURN)
        judged.add(env, trial.seed, None if given is None else given[0])
        count = 1 if given is None else len(given[1])
        for action in rest[:count]:
            take(env, action)
        rest = rest[count:]
