"""Episodes in which tools are called, in the answer and in the form of the model's template."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from ragen_pl.envs import SearchQA, Sokoban, TextEnv
from ragen_pl.envs.tools import ToolEnv
from ragen_pl.models.call_json import CALL_ID
from ragen_pl.models.call_syntax import written_call
from ragen_pl.models.chat_template import ChatTemplate
from ragen_pl.rollout.actors import ExpertActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode, play_episode
from ragen_pl.rollout.prompts import Prompts, check_tools
from ragen_pl.rollout.responses import Enclosure, parse_response
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.types import Completion, EpisodeId, StopReason
from tests.support.templates import TEMPLATES, make_tokenizer
from tests.support.tool_templates import MARKED_TEMPLATES, TOOL_TEMPLATES, make_tool_tokenizer

CONFIG = RolloutConfig(
    max_turns=6, max_actions_per_turn=1, max_response_tokens=120, max_context=6000
)
CALL = Enclosure("<tool_call>\n", "\n</tool_call>")


class Counting(ToolEnv):
    """Repeats what it is told, with its types."""

    name, instruction, task, max_actions = "counting", "Count.", "Count.", 6

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        return {}

    def count(self, text: str, times: int, marks: list[str] | None = None) -> str:
        """Count.

        Args:
            text: What.
            times: How often.
            marks: By what.
        """
        return f"{text!r} {times!r} {marks!r}"


def chat(shape: str = "hermes", **prompts: Any) -> Chat:
    plain = shape in TEMPLATES
    tokenizer = make_tokenizer(TEMPLATES[shape]) if plain else make_tool_tokenizer(shape)
    markers, _ = ChatTemplate(tokenizer, {}).markers()
    return Chat(Prompts(**prompts), tokenizer, markers, 1)


def sampled(talk: Chat, ids: Sequence[int], *, stopped: bool = True) -> Completion:
    tokens = (*ids, talk.markers.end) if stopped else tuple(ids)
    zeros = (0.0,) * len(tokens)
    return Completion(tokens, zeros, zeros, stopped=stopped)


def episode(talk: Chat) -> ChatEpisode:
    env = SearchQA(people=60, top_k=1)
    return ChatEpisode(env, talk, CONFIG, seed=3, episode_id=EpisodeId(0, 0, 0))


def say(played: ChatEpisode, text: str) -> None:
    """Answer the next turn with a text."""
    assert played.begin_turn()
    (ids,) = played.chat.encode([text])
    played.receive(sampled(played.chat, ids))


def search(query: str) -> str:
    return json.dumps({"name": "search", "arguments": {"query": query}})


def whole(played: ChatEpisode) -> str:
    """Return the dialogue so far as the model sees it, the next context included."""
    played.begin_turn()
    return str(played.chat.tokenizer.decode(played.context.tokens))


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize("shape", TOOL_TEMPLATES)
def test_the_dialogue_is_what_the_template_renders(shape: str, think: bool) -> None:
    talk = chat(shape, think=think, tools="template", turn="{observation}")
    played = episode(talk)
    first = played.observation
    said = talk.response_text("I look.", [search("works")])
    say(played, said)
    assert played.turns[0].is_valid
    assert played.turns[0].actions == (search("works"),)
    say(played, "Hm." if think else "Hm")
    is_call = shape == "bare" and not think  # there, whatever is said is one
    assert played.turns[1].is_valid is is_call
    assert played.turns[1].actions == (("Hm",) if is_call else ())
    tag = talk.opening_tag
    role = "user" if shape == "no results" else "tool"
    found = played.turns[1].observation
    messages = [
        {"role": "system", "content": played.system.strip()},
        {"role": "user", "content": first},
        {"role": "assistant", "content": tag + said},
        {"role": role, "content": found},
        {"role": "assistant", "content": tag + ("Hm." if think else "Hm")},
        {"role": role if is_call else "user", "content": played.observation},
    ]
    rendered = ChatTemplate(talk.tokenizer, {}, played.env.env.tools).render(messages)
    assert whole(played) == f"{rendered}{tag}"
    assert "1. " in found
    assert rendered is not None
    assert rendered.count('"description": "Search the documents') == 1


def test_in_the_answer_the_system_message_has_the_tools() -> None:
    played = episode(chat("chatml"))
    assert '{"name": "search", "description": "Search the documents' in played.system
    assert "Format: <think>...</think><answer>...</answer>" in played.system
    say(played, f"I look.</think><answer>{search('works')}</answer>")
    assert played.turns[0].is_valid
    assert "1. " in played.observation
    say(played, '</think><answer>{"name": "finnish"}</answer>')
    assert "Error: there is no tool 'finnish'" in whole(played)


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize(
    "shape", ["hermes", "bare", "tagged", "paired", "chatml", *MARKED_TEMPLATES]
)
def test_the_expert_s_calls_are_demonstrations_in_either_form(shape: str, think: bool) -> None:
    tools: Any = "answer" if shape == "chatml" else "template"
    talk = chat(shape, think=think, tools=tools)
    played = episode(talk)
    moves = play_episode(played, ExpertActor(), random.Random(0))
    assert played.stop_reason is StopReason.TERMINATED
    assert played.success
    assert all(turn.is_valid for turn in played.turns)
    assert [turn.actions for turn in played.turns] == [move.actions for move in moves]
    opening, closing = talk.enclosure.opening, talk.enclosure.closing
    for turn in played.turns:
        call = (
            turn.actions[0] if talk.syntax is None else written_call(turn.actions[0], talk.syntax)
        )
        assert (talk.opening_tag + turn.response).endswith(f"{opening}{call}{closing}")
        assert (turn.thought_tokens > 0) is think


@pytest.mark.parametrize("shape", MARKED_TEMPLATES)
def test_calls_that_begin_with_a_special_token_are_tokens_of_the_template(shape: str) -> None:
    wording = {"turn": "{observation}", "response_format_answer": "a call"}
    talk = chat(shape, think=False, tools="template", **wording)
    tokenizer = talk.tokenizer
    played = episode(talk)
    template = ChatTemplate(tokenizer, {}, played.env.env.tools)
    first, system = played.observation, played.system.strip()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": first},
    ]
    if shape.startswith("listed"):  # whose system message moves
        messages = [{"role": "user", "content": f"{system}\n\n{first}"}]
    rng, opening = random.Random(0), tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")
    while played.begin_turn():
        assert played.context.tokens[-1] == opening
        assert isinstance(opening, int)
        text = template.render(messages)
        assert text is not None
        wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [*played.context.tokens] == [*wanted, opening]
        played.take(ExpertActor().act(played.env, rng, 1))
        function = json.loads(played.turns[-1].actions[0])
        said = {"type": "function", "id": CALL_ID, "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [said]},
            {"role": "tool", "content": played.observation.strip(), "tool_call_id": CALL_ID},
        ]
    assert played.success
    assert len(played.turns) > 1


@pytest.mark.parametrize("shape", MARKED_TEMPLATES)
def test_only_the_texts_of_the_template_are_special_tokens(shape: str) -> None:
    talk = chat(shape, tools="template")
    call = json.dumps({"name": "search", "arguments": {"query": "[ARGS] [TOOL_CALLS]"}})
    text = talk.response_text("[TOOL_CALLS] or [ARGS]?", [call])
    ids = talk.encode_response(text)
    assert talk.decode(ids) == text
    known = talk.tokenizer.added_tokens_decoder
    special = [known[token].content for token in ids if token in known and known[token].special]
    marks = {"with ids": ["[CALL_ID]", "[ARGS]"], "with arguments": ["[ARGS]"]}.get(shape, [])
    assert special == ["[TOOL_CALLS]", *marks]
    parsed = talk.parse(text, None)
    assert (parsed.thought, parsed.is_valid) == ("[TOOL_CALLS] or [ARGS]?", True)
    assert "[ARGS] [TOOL_CALLS]" in parsed.actions[0]
    assert talk.encode_response("no call") == tuple(talk.encode(["no call"])[0])


@pytest.mark.parametrize("shape", MARKED_TEMPLATES)
def test_after_a_response_without_a_call_the_tools_stay_where_they_are(shape: str) -> None:
    """The template would move them to the last user message, behind tokens that are kept."""
    talk = chat(shape, tools="template", turn="{observation}")
    played = episode(talk)
    tools = "[AVAILABLE_TOOLS]"
    say(played, "I look.</think>Hm")
    before, sep, after = whole(played).partition("I look.</think>Hm</s>")
    assert sep
    assert before.count(tools) == 1
    assert after == f"[INST]{played.observation.strip()}[/INST]<think>"
    assert (played.turns[0].actions, played.turns[0].is_valid) == ((), False)
    say(played, talk.response_text("I look.", [search("works")]))
    assert "[TOOL_RESULTS]" in whole(played).partition(sep)[2]
    assert played.turns[1].is_valid


@pytest.mark.parametrize(
    ("shape", "said", "told"),
    [
        ("listed", '[{"name": "search", "arguments": {"query": "a"}]', "the call is no JSON"),
        ("listed", "[]", "a call is"),
        ("listed", '[{"name": "find"}]', "there is no tool 'find'"),
        ("listed", f"[{search('a')}, {search('b')}]", "a call is"),
        ("with ids", 'search[CALL_ID]x[ARGS]{"query": ', "arguments must be an object"),
        ("with arguments", 'search[ARGS]{"query": "a"} and', "arguments must be an object"),
        ("with arguments", "find[ARGS]{}", "there is no tool 'find'"),
        ("with arguments", 'search[ARGS]{"query": NaN}', "the call is no JSON"),
    ],
)
def test_wrong_calls_are_answered_as_results(shape: str, said: str, told: str) -> None:
    talk = chat(shape, think=False, tools="template")
    played = episode(talk)
    say(played, said)
    assert f"Error: {told}" in played.observation
    assert "[TOOL_RESULTS]" in whole(played).partition(said)[2]


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize("shape", ["tagged", "paired"])
def test_a_call_between_tags_reaches_the_environment_with_its_types(
    shape: str, think: bool
) -> None:
    talk = chat(shape, think=think, tools="template")
    assert talk.syntax is not None
    played = ChatEpisode(Counting(), talk, CONFIG, seed=3, episode_id=EpisodeId(0, 0, 0))
    call = json.dumps({"name": "count", "arguments": {"text": "7", "times": 3, "marks": ["a"]}})
    say(played, talk.response_text("I count.", [call]))
    assert (played.turns[0].actions, played.turns[0].is_valid) == ((call,), True)
    assert "'7' 3 ['a']" in played.observation
    wrong = json.dumps({"name": "count", "arguments": {"text": "7", "times": "many"}})
    say(played, talk.response_text("I count.", [wrong]))
    assert "Error: times of count is 'many'; it must be an integer" in played.observation
    say(played, talk.response_text("I count.", ["count[7]"]).replace("arg_", "").replace(">", ""))
    assert (played.turns[2].actions, played.turns[2].format_fault) == ((), "no_answer")


def test_a_call_that_cannot_be_read_is_told_apart_from_missing_tags() -> None:
    talk = chat("tagged", think=False, tools="template")
    between = f"{talk.enclosure.opening}<<7{talk.enclosure.closing}"
    faults = [talk.parse_whole(said, None, Counting().tools).fault for said in (between, "<<7")]
    assert faults == ["bad_call", "no_answer"]


@pytest.mark.parametrize(
    ("text", "actions", "is_valid"),
    [
        ('<tool_call>\n{"a": 1}\n</tool_call>', ('{"a": 1}',), True),
        ('<tool_call>{"a": 1}</tool_call>\n', ('{"a": 1}',), True),
        ('So: <tool_call>{"a": 1}</tool_call>', ('{"a": 1}',), False),
        ("<tool_call>1</tool_call><tool_call>2</tool_call>", ("1",), False),
        ("<tool_call></tool_call>", (), False),
        ("<tool_call>1", (), False),
        ("<answer>1</answer>", (), False),
    ],
)
def test_calls_are_parsed_as_answers_are(text: str, actions: Sequence[str], is_valid: bool) -> None:
    parsed = parse_response(text, think=False, known=None, max_actions=1, enclosure=CALL)
    assert (parsed.actions, parsed.is_valid) == (actions, is_valid)
    thinking = parse_response(
        f"<think>why</think>{text}", think=True, known=None, max_actions=1, enclosure=CALL
    )
    if not text.startswith("So"):
        assert (thinking.actions, thinking.is_valid) == (actions, is_valid)


def test_a_bare_call_is_the_rest_of_the_response() -> None:
    bare = Enclosure("", "")
    parsed = parse_response(
        "<think>a</think>\n{1}</x>\n", think=True, known=None, max_actions=1, enclosure=bare
    )
    assert (parsed.thought, parsed.actions, parsed.is_valid) == ("a", ("{1}</x>",), True)
    assert not parse_response("{1}", think=True, known=None, max_actions=1, enclosure=bare).actions


def test_environments_without_tools_are_refused() -> None:
    prompts = Prompts(tools="template")
    envs: dict[str, TextEnv] = {"env": SearchQA(), "eval_sets.x": Sokoban()}
    with pytest.raises(ValueError, match=r"data.prompts.tools is template, but data.eval_sets.x"):
        check_tools(prompts, envs)
    check_tools(Prompts(), envs)
    brackets: dict[str, TextEnv] = {"env": SearchQA(calls="brackets")}
    with pytest.raises(ValueError, match=r"calls of data.env is brackets.*set calls to json"):
        check_tools(prompts, brackets)
    with pytest.raises(ValueError, match=r"data.env is Sokoban, whose actions are not calls"):
        RolloutDataModule(Sokoban(), {"default": Sokoban()}, prompts)
