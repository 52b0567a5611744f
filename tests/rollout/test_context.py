"""The context of an episode: what fits, where it is cut, and what is told when nothing fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.context import Context
from ragen_pl.rollout.memory import Compact, Full, Memory, State, Window
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.types import Completion
from tests.support.lamps import Stairs

PROMPTS = Prompts(think=False, system="{instruction} {format}", turn="{observation}")
TOKENIZER = build_tokenizer((*Stairs().vocabulary(), "Sum up."))
CHAT = Chat(PROMPTS, TOKENIZER, read_markers(TOKENIZER), 1)
CONFIG = RolloutConfig(
    group_size=2, max_turns=6, max_actions_per_turn=1, max_response_tokens=8, max_context=600
)


def make_context(config: RolloutConfig = CONFIG) -> Context:
    env = Stairs()
    return Context(CHAT, env, config, system=CHAT.system_text(env), text="step 0")


def encoded(context: Context) -> tuple[int, ...]:
    (prompt,) = CHAT.encode_parts([context.segments])
    return prompt


def answer(context: Context, words: str = "up") -> tuple[int, ...]:
    """Give an answer and the next turn; return the answer's tokens."""
    (ids,) = CHAT.encode([words])
    tokens = (*ids, CHAT.markers.end)
    context.add_response(Completion.written(tokens), called=False)
    context.add_turn("step 1")
    return tokens


@pytest.mark.parametrize(("memory", "limit"), [(Full(), 20), (Compact(request="Sum up."), 25)])
def test_a_first_prompt_fits_if_all_that_may_follow_does(memory: Memory, limit: int) -> None:
    """What the refusal names is the smallest limit that is not refused."""
    short = make_context(replace(CONFIG, memory=memory, max_context=limit))
    assert not short.begin_message(encoded(short))
    told = short.why_nothing_fits(7)
    assert told.startswith(f"rollout.max_context is {limit}, but the first prompt of")
    assert "(seed 7)" in told
    needed = int(told.partition("set rollout.max_context to ")[2].split()[0])
    for limit, fits in ((needed - 1, False), (needed, True)):
        context = make_context(replace(CONFIG, memory=memory, max_context=limit))
        assert context.begin_message(encoded(context)) is fits


def test_a_whole_dialogue_is_one_sequence() -> None:
    context = make_context()
    first = encoded(context)
    assert context.begin_message(first)
    spoken = answer(context)
    assert not context.begins_sequence
    second = encoded(context)
    assert context.begin_message(second)
    assert context.tokens == [*first, *spoken, *second]
    assert context.prompt == second


@pytest.mark.parametrize(("memory", "cuts"), [(State(), [True, True]), (Window(2), [False, True])])
def test_a_cut_begins_a_sequence_of_its_own(memory: Memory, cuts: list[bool]) -> None:
    context, found = make_context(replace(CONFIG, memory=memory)), []
    for _ in range(2):
        assert context.begin_message(encoded(context))
        answer(context)
        found.append(context.begins_sequence)
    assert found == cuts
    prompt = encoded(context)
    assert context.begin_message(prompt)
    assert context.tokens == list(prompt), "nothing of the sequence before"


def test_a_summary_takes_the_place_of_what_it_tells() -> None:
    limit = len(encoded(make_context())) + 60
    config = replace(CONFIG, memory=Compact(request="Sum up."), max_context=limit)
    context = make_context(config)
    assert context.begin_message(encoded(context))
    while not context.asks_for_summary:
        answer(context)
        assert context.begin_message(encoded(context))
    assert context.tokens[-len(context.prompt) :] == list(context.prompt)
    summary = context.summary_of(3, ["up"] * 50)
    assert len(summary.token_ids) <= CONFIG.max_response_tokens
    context.add_summary(summary, "key")
    assert (context.num_summaries, context.begins_sequence) == (1, True)
    assert context.summary is not None
    assert context.summary.anchor_key == "summary: key"
    assert context.begin_message(encoded(context))
    assert "step 0" not in TOKENIZER.decode(context.tokens)
    assert "step 1" in TOKENIZER.decode(context.tokens)
