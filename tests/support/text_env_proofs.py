"""Proofs that the keys of the environments in free text act."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ragen_pl.envs import SearchQA, TextEnv, WebShop
from ragen_pl.envs.tools import Calculator
from ragen_pl.envs.web_shop.catalogue import Catalogue
from tests.support.config_key_effects import KeyProof, Outcome

SEEDS = range(6)


def by_expert(env: TextEnv) -> str:
    return env.expert_turn(random.Random(0), 1)[1][0]


def half_right(env: TextEnv) -> str:
    """Answer with more than the answer, or buy without choosing."""
    if isinstance(env, SearchQA):
        return env.written("finish", answer=f"it is {env._question.answers[0]}")
    return "click[Buy Now]" if "Buy Now" in env.render_text() else by_expert(env)


def idle(env: TextEnv) -> str:
    return ""


def transcript(env: TextEnv, seed: int, choose: Callable[[TextEnv], str]) -> list[Any]:
    """Play an episode and return all there is to see."""
    text, info = env.reset(seed=seed, options={"noise_seed": 0})
    told: list[Any] = [env.actions_text, text, str(info)]
    has_ended = False
    while not has_ended:
        text, reward, terminated, truncated, info = env.step(choose(env))
        told += [text, reward, terminated, truncated, str(info)]
        has_ended = terminated or truncated
    return told


def _proof(
    kind: type[TextEnv], others: dict[str, tuple[Any, ...]], *bases: dict[str, Any]
) -> KeyProof:
    def play(arguments: dict[str, Any]) -> Outcome:
        env = kind(**arguments)
        ways = (by_expert, half_right, idle)
        return {f"{s} {way.__name__}": transcript(env, s, way) for s in SEEDS for way in ways}

    named = {f"{kind.__name__}.{key}": values for key, values in others.items()}
    return KeyProof(kind, play, bases, named)


_TEMPORARY = tempfile.TemporaryDirectory(prefix="text_env_proofs")  # removed with the process
_FOLDER = Path(_TEMPORARY.name)


def _file(name: str, content: Any) -> str:
    path = _FOLDER / f"{name}.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


_ASKED = [
    {
        "question": f"What is {n}?",
        "answer": f"thing {n}",
        "supporting_facts": [[f"Number {n}", 0]],
        "context": [[f"Number {n}", [f"It is thing {n}."]]],
    }
    for n in range(40)
]
_QUESTIONS, _OTHERS = _file("questions", _ASKED[:30]), _file("others", _ASKED[10:])
_CORPUS = _file("corpus", [{"title": f"Number {n}", "text": f"A thing: {n}."} for n in range(30)])
_OWN = Catalogue(30)
_ITEMS, _ATTRIBUTES = _file("items", _OWN.items), _file("attributes", _OWN.attributes)
_FEWER = _file("fewer", _OWN.items[::2])
_WISHES = _file("wishes", {k: {**v, "instruction": "Get it"} for k, v in _OWN.attributes.items()})
_HUMAN = _file(
    "human",
    {
        item["asin"]: [
            {"instruction": "i want it", "instruction_attributes": ["x"], "instruction_options": []}
        ]
        for item in _OWN.items
    },
)

TEXT_PROOFS = {
    "SearchQA": _proof(
        SearchQA,
        {
            "questions": (_QUESTIONS, _OTHERS),
            "corpus": (_CORPUS,),
            "people": (60,),
            "fewest_hops": (1,),
            "most_hops": (3,),
            "top_k": (2,),
            "tools": ((Calculator(),),),
            "max_actions": (2,),
        },
        {},
        {"questions": _QUESTIONS},
    ),
    "WebShop": _proof(
        WebShop,
        {
            "items": (_FEWER,),
            "attributes": (_WISHES,),
            "human_instructions": (_HUMAN,),
            "products": (60,),
            "fewest_wishes": (4,),
            "most_wishes": (2,),
            "results_per_page": (2,),
            "max_actions": (3,),
        },
        {},
        {"items": _ITEMS, "attributes": _ATTRIBUTES},
    ),
}
