"""Recorded play as a teacher: read token by token as it was written, each refusal counted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.report.trajectory_record import Occasion, record_line, trajectory_record
from ragen_pl.rollout.actors import ExpertActor, RandomActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode, play_episode
from ragen_pl.rollout.memory import Memory, Window
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.teachers import Lessons, Offline, TeachingTask
from ragen_pl.types import Completion, EpisodeId, Trajectory
from tests.support.lamps import NamedLamp, Stairs
from tests.support.words import vocabulary

PROMPTS = Prompts()
ROLLOUT = RolloutConfig(
    max_turns=6, max_actions_per_turn=2, max_response_tokens=24, max_context=1024
)


def chat_for(env: TextEnv, *more: str) -> Chat:
    tokenizer = build_tokenizer((*more, *vocabulary(PROMPTS, env, 2)))
    return Chat(PROMPTS, tokenizer, read_markers(tokenizer), 2)


CHAT = chat_for(Stairs())
OTHER_CHAT = chat_for(Stairs(), "a", "lit</think>", "button")
"""The same words with other tokens."""


def task(**changes: Any) -> TeachingTask:
    given = {"env": Stairs(), "chat": CHAT, "rollout": ROLLOUT, "demonstrations": 100}
    return TeachingTask(**{**given, "difficulties": (), "first_seed": 0, **changes})


def played(seed: int, *, memory: Memory | None = None, by_expert: bool = True) -> Trajectory:
    rollout = ROLLOUT if memory is None else replace(ROLLOUT, memory=memory)
    episode = ChatEpisode(Stairs(), CHAT, rollout, seed=seed, episode_id=EpisodeId(0, seed, 0))
    actor = ExpertActor() if by_expert else RandomActor()
    play_episode(episode, actor, random.Random(seed))
    return episode.trajectory()


def recorded(trajectory: Trajectory, **changes: Any) -> dict[str, Any]:
    record = trajectory_record(trajectory, CHAT, Occasion("predict", 3, "last", "default", 0.5))
    return record | changes


def write(folder: Path, *lines: Mapping[str, Any] | str) -> Offline:
    path = folder / "play.jsonl"
    path.write_text("".join(each if isinstance(each, str) else record_line(each) for each in lines))
    return Offline((str(path),))


def rows(lessons: Lessons) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    return [(row.token_ids, row.loss_mask) for each in lessons.lessons for row in each.rows]


# --- trajectories of this library -----------------------------------------------------------------


@pytest.mark.parametrize("memory", [None, Window(2)])
def test_what_was_played_is_read_token_by_token(tmp_path: Path, memory: Memory | None) -> None:
    trajectories = [played(seed, memory=memory) for seed in range(6)]
    offline = write(tmp_path, *map(recorded, trajectories))
    rollout = ROLLOUT if memory is None else replace(ROLLOUT, memory=memory)
    lessons = offline.teach(task(rollout=rollout))
    unique = dict.fromkeys(
        tuple((s.token_ids, s.loss_mask) for s in each.sequences) for each in trajectories
    )
    assert rows(lessons) == [row for each in unique for row in each]
    assert "played as evaluation sets: default" in lessons.told
    assert "0 encoded anew" in lessons.told
    assert offline.teach(task(rollout=rollout)) == lessons


def test_sampled_tokens_stay_though_their_text_has_shorter_ones(tmp_path: Path) -> None:
    """A policy may spell a word out; encoding its text again would give other tokens."""
    episode = ChatEpisode(Stairs(), CHAT, ROLLOUT, seed=1, episode_id=EpisodeId(0, 1, 0))
    spelled = CHAT.encode(["l"])[0] + CHAT.encode(["i"])[0] + CHAT.encode(["t"])[0]
    rest = CHAT.encode(["</think><answer>on || on</answer>"])[0]
    ids = (*spelled, *rest, CHAT.markers.end)
    assert CHAT.encode([CHAT.decode(ids)])[0] != list(ids[:-1])
    assert episode.begin_turn()
    episode.receive(Completion.written(ids))
    assert episode.stop_reason is not None
    trajectory = episode.trajectory()
    lessons = write(tmp_path, recorded(trajectory)).teach(task())
    assert rows(lessons) == [(trajectory.token_ids, trajectory.loss_mask)]


def test_records_of_versions_without_summaries_are_read(tmp_path: Path) -> None:
    record = recorded(played(1))
    for turn in record["turns"]:
        del turn["summary"]
    assert len(write(tmp_path, record).teach(task()).lessons) == 1


def test_another_tokenizer_gets_the_same_text(tmp_path: Path) -> None:
    trajectory = played(3)
    lessons = write(tmp_path, recorded(trajectory)).teach(task(chat=OTHER_CHAT))
    ((ids, mask),) = rows(lessons)
    assert ids != trajectory.token_ids
    assert OTHER_CHAT.decode(ids) == CHAT.decode(trajectory.token_ids)
    own = [token for token, taught in zip(ids, mask, strict=True) if taught]
    assert OTHER_CHAT.decode(own) == "".join(turn.response for turn in trajectory.turns)
    assert "0 responses in their own tokens" in lessons.told


def test_untrue_thoughts_and_broken_answers_are_context_only(tmp_path: Path) -> None:
    episode = ChatEpisode(Stairs(), CHAT, ROLLOUT, seed=1, episode_id=EpisodeId(0, 1, 0))
    texts = ("dark</think><answer>on</answer>", "what", "lit</think><answer>on</answer>")
    for text in texts:
        assert episode.begin_turn()
        episode.receive(CHAT.written(text))
    trajectory = episode.trajectory()
    assert trajectory.success
    lessons = write(tmp_path, recorded(trajectory)).teach(task())
    ((ids, mask),) = rows(lessons)
    assert ids == trajectory.token_ids
    taught = [token for token, is_taught in zip(ids, mask, strict=True) if is_taught]
    assert CHAT.decode(taught) == texts[2]
    assert "1 of 3 turns imitated" in lessons.told


def test_the_prompts_are_this_run_s(tmp_path: Path) -> None:
    prompts = Prompts(system="{instruction}", turn="Seen: {observation}")
    chat = Chat(prompts, CHAT.tokenizer, CHAT.markers, 2)
    lessons = write(tmp_path, recorded(played(1))).teach(task(chat=chat))
    assert "Seen: lit" in chat.decode(rows(lessons)[0][0])


def test_answers_of_an_endpoint_are_read_as_text(tmp_path: Path) -> None:
    """It gives no tokens, so its records have none."""
    trajectory = played(3)
    line = recorded(trajectory, token_ids=[], loss_mask=[], log_probs=[])
    lessons = write(tmp_path, line).teach(task())
    assert rows(lessons) == rows(write(tmp_path, recorded(trajectory)).teach(task()))
    assert "0 responses in their own tokens, " in lessons.told


# --- filters --------------------------------------------------------------------------------------


def test_filters_choose_by_success_return_and_start(tmp_path: Path) -> None:
    trajectories = [played(seed, by_expert=False) for seed in range(40)]
    offline = replace(write(tmp_path, *map(recorded, trajectories)), imitate_untrue=True)
    solved = replace(offline, success_only=True).teach(task())
    assert "refused: no success" in solved.told
    wanted = {t.token_ids for t in trajectories if t.success}
    assert 0 < len(wanted) < len({t.token_ids for t in trajectories})
    assert {ids for ids, _ in rows(solved)} == wanted
    paid = replace(offline, min_return=2.0).teach(task())
    assert {ids for ids, _ in rows(paid)} == {
        t.token_ids for t in trajectories if t.total_reward >= 2.0
    }
    best = replace(offline, best_per_start=1).teach(task())
    starts = {t.start_key for t in trajectories}
    assert len(best.lessons) == len(starts) == 2
    for start in starts:
        highest = max(t.total_reward for t in trajectories if t.start_key == start)
        assert any(
            t.start_key == start and t.total_reward == highest and t.token_ids in dict(rows(best))
            for t in trajectories
        )
    best_of_few = replace(offline, best_per_start=1).teach(task(demonstrations=1))
    assert len(best_of_few.lessons) == 1
    assert set(best_of_few.lessons) < set(best.lessons)
    few = offline.teach(task(demonstrations=3))
    assert len(few.lessons) == 3
    assert "beyond warm_start.demonstrations" in few.told


def test_the_best_of_those_that_can_be_taught_are_chosen(tmp_path: Path) -> None:
    good, long = ({"messages": said("lit", text), "seed": 3} for text in (GOOD, TOO_LONG))
    offline = write(tmp_path, {**good, "reward": 1.0}, {**long, "reward": 2.0})
    lessons = replace(offline, best_per_start=1).teach(task())
    assert len(lessons.lessons) == 1
    assert "1 refused: a response that is too long" in lessons.told


def test_fields_that_are_null_say_nothing(tmp_path: Path) -> None:
    """As exporters write them that give all lines the same columns."""
    nothing = dict.fromkeys(("env", "success", "reward", "score", "seed", "difficulty", "prompt"))
    lines = [{"messages": said(f"{n}: lit", GOOD), **nothing} for n in range(4)]
    lines.append({**nothing, "messages": None, "prompt": said("5: lit"), "completion": said(GOOD)})
    lines[-1]["completion"] = [{"role": "assistant", "content": GOOD}]
    lessons = replace(write(tmp_path, *lines), best_per_start=1).teach(task())
    assert len(lessons.lessons) == 5
    assert {lesson.difficulty for lesson in lessons.lessons} == {""}


def test_messages_begin_where_their_seed_says(tmp_path: Path) -> None:
    """The names of a bandit's arms are those of the start."""
    env, lines = Bandit("named"), list[dict[str, Any]]()
    for seed in range(6):
        observation, _ = env.reset(seed=seed)
        answer = f"<think>try</think><answer>{env.actions[0]}</answer>"
        lines.append({"messages": said(observation, answer), "seed": seed})
    chat = chat_for(env)
    lessons = write(tmp_path, *lines).teach(task(env=env, chat=chat))
    assert len(lessons.lessons) == len({json.dumps(line["messages"]) for line in lines})


def test_what_is_counted_is_what_is_used(tmp_path: Path) -> None:
    line = recorded(played(1))
    lessons = write(tmp_path, line, line, line).teach(task())
    count = len(line["turns"])
    assert f"{count} of {count} turns imitated; {count} responses in their own" in lessons.told


def test_difficulties_are_those_that_are_wanted(tmp_path: Path) -> None:
    lines = [recorded(played(seed), difficulty="dark" if seed % 2 else "lit") for seed in range(4)]
    lessons = write(tmp_path, *lines).teach(task(difficulties=("lit",)))
    assert {each.difficulty for each in lessons.lessons} == {"lit"}


# --- messages -------------------------------------------------------------------------------------

GOOD = "<think>lit</think><answer>on || on</answer>"
TOO_LONG = f"<think>{'x' * 40}</think><answer>on</answer>"


def said(*texts: str, system: str | None = "Press.") -> list[dict[str, Any]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return first + [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def test_messages_are_taken_as_they_are(tmp_path: Path) -> None:
    talk = said("Now: lit", "<think>lit</think><answer>on</answer>", "Then: lit", GOOD)
    forms: list[dict[str, Any]] = [
        {"messages": talk},
        {"prompt": talk[:2], "completion": talk[2:], "reward": 1.0},
    ]
    for form in forms:
        lessons = write(tmp_path, form).teach(task())
        ((ids, mask),) = rows(lessons)
        first, later = (
            CHAT.encode_parts([(*CHAT.markers.first("Press.", "Now: lit"), CHAT.opening_tag)])[0],
            CHAT.encode_parts([(*CHAT.markers.later("Then: lit"), CHAT.opening_tag)])[0],
        )
        answers = [
            (*CHAT.encode([talk[n]["content"].removeprefix("<think>")])[0], CHAT.markers.end)
            for n in (2, 4)
        ]
        assert ids == (*first, *answers[0], *later, *answers[1])
        assert mask == (
            *((False,) * len(first) + (True,) * len(answers[0])),
            *((False,) * len(later) + (True,) * len(answers[1])),
        )


def test_of_prompt_and_completion_the_completion_is_imitated(tmp_path: Path) -> None:
    talk = said("lit", "<think>dark</think><answer>on</answer>", "lit", GOOD)
    line = {"prompt": talk[:4], "completion": talk[4:]}
    ((ids, mask),) = rows(write(tmp_path, line).teach(task()))
    taught = [token for token, is_taught in zip(ids, mask, strict=True) if is_taught]
    assert "<think>" + CHAT.decode(taught) == GOOD


def test_reasoning_and_parts_of_text_are_read(tmp_path: Path) -> None:
    answer = {
        "role": "assistant",
        "reasoning_content": "lit",
        "content": [{"type": "text", "text": "\n<answer>on || on</answer>"}],
    }
    line = {"messages": [*said("lit"), answer, {"role": "user", "content": "over"}]}
    ((ids, mask),) = rows(write(tmp_path, line).teach(task()))
    taught = [token for token, is_taught in zip(ids, mask, strict=True) if is_taught]
    assert "<think>" + CHAT.decode(taught) == GOOD


def test_a_dialogue_without_system_message_gets_this_run_s(tmp_path: Path) -> None:
    line = {"messages": said("lit", GOOD, system=None)}
    ((ids, _),) = rows(write(tmp_path, line).teach(task()))
    assert CHAT.system_text(Stairs()) in CHAT.decode(ids)


# --- wording --------------------------------------------------------------------------------------


def in_prompts(env: TextEnv, seed: int) -> list[dict[str, Any]]:
    """Return a dialogue of two turns as the run would word it."""
    shown, _ = env.reset(seed=seed)
    first = CHAT.turn_text(0, shown, 0.0, env.max_actions)
    later, _, _, _, _ = env.step("on" if shown == "lit" else "off")
    answer = f"<think>{shown}</think><answer>{'on' if shown == 'lit' else 'off'}</answer>"
    then = CHAT.turn_text(1, later, 1.0, env.max_actions - 1)
    return said(first, answer, then, answer, system=CHAT.system_text(env).strip())


def test_messages_in_the_run_s_own_words_are_told_nothing_of(tmp_path: Path) -> None:
    seeded = {"messages": in_prompts(Stairs(), 3), "seed": 3}
    seedless = {"messages": in_prompts(Stairs(), 4)[1:]}
    lessons = write(tmp_path, seeded, seedless).teach(task())
    assert len(lessons.lessons) == 2
    assert "worded" not in lessons.told
    assert lessons.metrics == {"other_wording": 0.0}


def raw_observation(line: dict[str, Any]) -> None:
    line["messages"][1]["content"] = "lit"


def later_raw(line: dict[str, Any]) -> None:
    line["messages"][3]["content"] = "Reward: 1\nState:\nlit"


def other_system(line: dict[str, Any]) -> None:
    line["messages"][0]["content"] = "You are a pirate."


def other_start(line: dict[str, Any]) -> None:
    shown = line["messages"][1]["content"]
    line["messages"][1]["content"] = shown.replace("lit", "dim").replace("dark", "dim")


def without_seed(line: dict[str, Any]) -> None:
    other_system(line)
    del line["seed"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (raw_observation, "user message 1 is 'lit', and prompts.turn is 'Reward: {reward}"),
        (later_raw, "user message 2 is 'Reward: 1"),
        (other_system, "the system message is 'You are a pirate.', and this run's is 'Press"),
        (without_seed, "the system message is 'You are a pirate.', and this run's is 'Press"),
        (other_start, "and this run's for its seed 3 is"),
    ],
)
def test_messages_in_other_words_are_counted_and_the_first_difference_shown(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    good = {"messages": in_prompts(Stairs(), 4), "seed": 4}
    other = {"messages": in_prompts(Stairs(), 3), "seed": 3}
    change(other)
    lessons = write(tmp_path, good, other).teach(task())
    assert "warning: 1 of 2 dialogues are not worded as this run's prompts" in lessons.told
    assert "play.jsonl:2: " in lessons.told
    assert told in lessons.told
    assert lessons.metrics == {"other_wording": 0.5}


def test_a_system_message_that_depends_on_the_start_is_compared_with_the_template(
    tmp_path: Path,
) -> None:
    class Named(Stairs):
        @property
        def instruction(self) -> str:  # type: ignore[override]
            return f"Press: it is {self.render_text()}."

    env, lines = Named(), list[dict[str, Any]]()
    for seed in range(4):
        env.reset(seed=seed)
        lines.append({"messages": in_prompts(env, seed)})
    offline = write(tmp_path, *lines)
    assert "worded" not in offline.teach(task(env=Named())).told
    lines[0]["messages"][0]["content"] = "Press: it is lit.\nFormat: free"
    told = write(tmp_path, *lines).teach(task(env=Named())).told
    assert "is 'Press: it is lit.\\nFormat: free', and prompts.system is" in told
    assert "Actions: {actions}" in told


def test_prompts_that_are_written_anew_have_no_other_wording(tmp_path: Path) -> None:
    lessons = write(tmp_path, recorded(played(1))).teach(task())
    assert "worded" not in lessons.told
    assert lessons.metrics == {}


# --- what is refused ------------------------------------------------------------------------------


def spoiled(change: Callable[[dict[str, Any]], Any]) -> str:
    record = recorded(played(1))
    change(record)
    return json.dumps(record) + "\n"


REFUSED: Mapping[str, Mapping[str, Any] | str] = {
    "no JSON": "{\n",
    "no JSON object": "[]\n",
    "neither schema, messages nor prompt and completion": "{}\n",
    "schema 'other'": '{"schema": "other"}\n',
    "fields that are missing": '{"schema": "ragen-pl.trajectory/1"}\n',
    "fields that are missing or of a wrong type": '{"messages": 3}\n',
    "prompt and completion are texts": '{"prompt": "a", "completion": "b"}\n',
    "no assistant message": {"messages": said("lit")},
    "no assistant message (base": spoiled(lambda r: r["messages"].__delitem__(slice(2, None))),
    "wrong role order": {"messages": [*said("lit"), *said("lit", GOOD, system=None)]},
    "a message of the role 'tool'": {
        "messages": [*said("lit", GOOD), {"role": "tool", "content": "x"}, *said("a", GOOD)[1:]]
    },
    "parts other than text": {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    "a call of tools": {"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]},
    "a message without text": {"messages": [{"role": "user", "content": None}]},
    "does not begin with <think>": {"messages": said("lit", "<answer>on</answer>")},
    "breaks the format or names no known action": {
        "messages": said("lit", "<think>lit</think><answer>jump</answer>")
    },
    "a response that is too long": {"messages": said("lit", TOO_LONG)},
    "a return of nan": '{"messages": [{"role": "user", "content": "lit"}, '
    '{"role": "assistant", "content": "on"}], "reward": NaN}\n',
    "success is neither true nor false": {"messages": said("lit", GOOD), "success": "false"},
    "a message of the role 'developer'": {
        "messages": [{"role": "developer", "content": "x"}, *said("lit", GOOD)]
    },
    "too long for the context": {"messages": said("x" * 3000, GOOD)},
    "of another environment (maze)": {"messages": said("lit", GOOD), "env": "maze"},
    "the environment or the endpoint failed": spoiled(
        lambda r: r["metrics"].__setitem__("error", "broken")
    ),
    "cannot enter its initial state": spoiled(lambda r: r.__setitem__("initial_state", {})),
    "actions that this run reads otherwise": spoiled(
        lambda r: r["turns"][0].__setitem__("actions", ["off", "off"])
    ),
    "different lengths": spoiled(lambda r: r["loss_mask"].pop()),
    "fewer sampled responses": spoiled(
        lambda r: r.__setitem__("loss_mask", [0] * len(r["token_ids"]))
    ),
    "no turn to imitate": spoiled(
        lambda r: [turn.__setitem__("is_valid", False) for turn in r["turns"]]
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_line_that_cannot_be_taught_is_counted_with_its_reason(
    tmp_path: Path, reason: str
) -> None:
    bad = REFUSED[reason]
    lessons = write(tmp_path, recorded(played(2)), bad).teach(task())
    assert len(lessons.lessons) == 1
    assert "1 of 2 lines of 1 files" in lessons.told
    told = lessons.told.splitlines()[-1]
    assert told.startswith("  1 refused: ")
    assert reason in told
    assert told.endswith("play.jsonl:2)")


def test_a_mark_of_order_before_the_first_line_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "marked.jsonl"
    path.write_text(f"{json.dumps(recorded(played(1)))}\n", encoding="utf-8-sig")
    assert len(Offline((str(path),)).teach(task()).lessons) == 1


def test_equal_lines_are_imitated_once(tmp_path: Path) -> None:
    line = recorded(played(1))
    lessons = write(tmp_path, line, line).teach(task())
    assert len(lessons.lessons) == 1
    assert "the same as an earlier line" in lessons.told


def test_without_a_single_good_line_the_run_ends_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can be taught in lamp\n  2 refused: no JSON"):
        write(tmp_path, "{\n", "{\n").teach(task())
    with pytest.raises(ConfigError, match=r"a folder: name .*/\*\.jsonl"):
        Offline((str(tmp_path),)).teach(task())
    (tmp_path / "latin.jsonl").write_bytes('{"messages": "ä"}\n'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"1 refused: no UTF-8 \(first .*latin.jsonl:1\)"):
        Offline((str(tmp_path / "latin.jsonl"),)).teach(task())
    with pytest.raises(ConfigError, match="there is no such file"):
        Offline((str(tmp_path / "missing.jsonl"),)).teach(task())


def test_keys_that_cannot_act_are_refused() -> None:
    with pytest.raises(ValueError, match=r"files is empty"):
        Offline(())
    with pytest.raises(ValueError, match=r"best_per_start is 0"):
        Offline(("a",), best_per_start=0)


def test_another_environment_is_no_teacher(tmp_path: Path) -> None:
    class Maze(NamedLamp):
        name = "maze"

    with pytest.raises(ConfigError, match=r"of another environment \(lamp\)"):
        write(tmp_path, recorded(played(1))).teach(task(env=Maze(), chat=chat_for(Maze())))
