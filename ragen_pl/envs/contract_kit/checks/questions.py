"""Methods that only ask: none of them changes the environment."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, calling
from ragen_pl.envs.contract.differences import difference
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import ACTIONS_PER_TURN, go_on, has_expert_now
from ragen_pl.runtime.findings import Finding, failure, ok

_SEEDS, _STEPS = 3, 4
_THOUGHT = "the goal is to the left"


def check_questions(subject: ExaminedEnv) -> Iterator[Finding]:
    """Ask everything that may be asked in several states, and compare the state after it."""
    changing = dict[str, str]()
    asked = set[str]()
    for seed in subject.in_time(range(_SEEDS)):
        env = CheckedEnv(subject.copy())
        env.reset(seed, 0)
        rng = random.Random(seed)
        for _ in range(_STEPS):
            for name, ask in _questions(subject, env).items():
                before = env.state()
                ask()
                asked.add(name)
                if (after := env.state()) != before:
                    where = f"(seed {seed}), at {difference(before, after, 'state')}"
                    changing.setdefault(name, where)
            steps = go_on(env, rng, subject.able_player, most=1)
            if steps and steps[-1].has_ended:
                break
    for name, where in changing.items():
        yield failure(
            f"{name} changes the state {where}, but is only a question",
            "work on copies in it, and let step alone change the state",
        )
    if not changing:
        yield ok(f"{', '.join(sorted(asked))} change nothing")


def _questions(subject: ExaminedEnv, env: CheckedEnv) -> dict[str, Callable[[], object]]:
    state, actions = env.state(), (env.actions or ("an answer",))[:1]
    found: dict[str, Callable[[], object]] = {
        "instruction": lambda: env.instruction,
        "actions_text": lambda: env.env.actions_text,
        "tools": lambda: env.env.tools,
        "render_text": env.env.render_text,
        "draw": lambda: env.env.draw(state),
        "render": env.env.render,
        "state_hash": env.env.state_hash,
        "anchor_key": env.env.anchor_key,
        "start_key": env.env.start_key,
        "thought_correct": lambda: env.thought_correct(_THOUGHT),
        "thought_grounding": lambda: env.thought_grounding(_THOUGHT, actions),
        "difficulty_of": lambda: env.difficulty_of(5),
        "vocabulary": lambda: list(env.env.vocabulary()),
        "symmetries": lambda: list(env.env.symmetries()),
    }
    if subject.has_expert and has_expert_now(env):
        found["expert_turn"] = lambda: env.expert_turn(random.Random(0), ACTIONS_PER_TURN)
        if type(env.env).hindsight_turn is not TextEnv.hindsight_turn:
            _, plan = env.expert_turn(random.Random(0), env.max_actions)
            found["hindsight_turn"] = lambda: env.hindsight_turn(plan, ACTIONS_PER_TURN)
    if subject.env.has_features:
        found["features"] = env.features
    return {name: _told(name, ask) for name, ask in found.items()}


def _told(name: str, ask: Callable[[], object]) -> Callable[[], object]:
    """Return the question with its errors told by its name."""

    def asked() -> object:
        with calling(name):
            return ask()

    return asked
