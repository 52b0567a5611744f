"""Collections: what is played, when episodes end, and what their trajectories record."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ragen_pl.envs.base import TextEnv
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import MAX_STATE_LENGTH
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.types import Completion, Request, Sampling, StopReason, Trajectory
from tests.support.words import vocabulary

PROMPTS = Prompts(think=False, system="{instruction} {format}", turn="{observation}")
CONFIG = RolloutConfig(
    num_groups=2, group_size=2, max_turns=3, max_actions_per_turn=2, max_response_tokens=12
)
STARTS = [GroupSeed(4, 40), GroupSeed(5, 50)]


class Counter(TextEnv):
    """Count up from the seed; 100 is the end, and ``break`` breaks it.

    Args:
        most: Actions a trajectory may take.
        pause: Seconds that a step takes, asleep.
    """

    name, actions, instruction = "counter", ("more", "leap", "break"), "Count."

    def __init__(self, most: int = 5, pause: float = 0.0) -> None:
        self.max_actions, self.pause = most, pause

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.count, self.noise = seed or 0, (options or {})["noise_seed"]
        return self.render_text(), {"difficulty": "even" if self.count % 2 == 0 else "odd"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self.pause)
        if action == "break":
            raise RuntimeError("it broke")
        self.count = 100 if action == "leap" else self.count + 1
        done = self.count >= 100
        return self.render_text(), 1.0, done, False, {"success": done}

    def render_text(self) -> str:
        return str(self.count)

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]

    def anchor_key(self) -> str:
        return "even" if self.count % 2 == 0 else "odd"


TOKENIZER = build_tokenizer(list(vocabulary(PROMPTS, Counter(), 2)))
CHAT = Chat(PROMPTS, TOKENIZER, read_markers(TOKENIZER), 2)


class Script:
    """Answer a turn of a member with a text, ``more`` if nothing else is written, and keep what was
    asked; a text that ends in … never stops."""

    def __init__(self, answers: Mapping[tuple[int, int, int], str] | None = None) -> None:
        self.answers, self.asked = answers or {}, list[list[Request]]()

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        self.asked.append(list(requests))
        return [self.answer(r) for r in requests]

    def answer(self, request: Request) -> Completion:
        place = request.episode.group_id, request.episode.member, request.number
        text = self.answers.get(place, "more</answer>")
        stopped = not text.endswith("…")
        ids = [*CHAT.encode([text.removesuffix("…")])[0], *([CHAT.markers.end] if stopped else [])]
        return Completion(tuple(ids), (-0.5,) * len(ids), (0.1,) * len(ids), stopped)


def play(
    script: Script, config: RolloutConfig = CONFIG, env: TextEnv | None = None
) -> dict[tuple[int, int], Trajectory]:
    groups = collect(
        env or Counter(),
        STARTS,
        CHAT,
        script,
        config,
        iteration=7,
        sampling=Sampling(1.0, config.max_response_tokens),
    )
    assert [(group.group_id, group.seed) for group in groups] == [(4, 40), (5, 50)]
    return {(t.group_id, t.member): t for group in groups for t in group.trajectories}


def test_members_share_a_start_and_live_ones_a_batch() -> None:
    script = Script({(4, 1, 1): "leap</answer>"})
    played = play(script)
    assert list(played) == [(4, 0), (4, 1), (5, 0), (5, 1)]
    assert {t.initial_state["count"] for (group, _), t in played.items() if group == 4} == {40}
    assert [len(asked) for asked in script.asked] == [4, 4, 3], "the one that leapt is done"
    assert {(r.episode.iteration, r.number) for r in script.asked[2]} == {(7, 2)}
    assert played[4, 1].stop_reason is StopReason.TERMINATED
    assert played[4, 1].success
    assert played[5, 0].stop_reason is StopReason.MAX_TURNS
    assert not played[5, 0].success
    assert (played[5, 0].difficulty, played[4, 0].env_name) == ("even", "counter")


def test_a_prefix_is_all_that_was_asked_and_answered() -> None:
    script = Script()
    played = play(script)
    for batch in script.asked:
        for request in batch:
            trajectory = played[request.episode.group_id, request.episode.member]
            assert request.prefix_ids == trajectory.prefix_ids(request.number)


def test_a_turn_records_the_state_it_was_taken_in() -> None:
    first, second, _ = play(Script())[5, 0].turns
    assert (first.observation, second.observation) == ("50", "51")
    assert play(Script())[5, 0].system == "Count. <answer>...</answer>"
    assert (first.anchor_key, second.anchor_key) == ("even", "odd")
    assert (first.state, second.state) == ({"count": 50}, {"count": 51})
    assert (first.actions, first.rewards["env"], first.is_valid) == (("more",), 1.0, True)
    assert first.response == "more</answer>"


class Hoarder(Counter):
    """Hand out the list in which all texts so far are kept, and count how often."""

    asked = 0

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.text = text

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        self.kept = [self.text]
        return super().reset(**given)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.kept.append(self.text)
        return super().step(action)

    def get_state(self) -> dict[str, Any]:
        Hoarder.asked += 1
        return {"count": self.count, "kept": self.kept}


def test_the_state_of_a_turn_is_a_copy() -> None:
    for turns in (trajectory.turns for trajectory in play(Script(), env=Hoarder("a")).values()):
        states = [turn.state for turn in turns if turn.state is not None]
        assert [len(state["kept"]) for state in states] == list(range(1, len(turns) + 1))


def test_a_state_that_grows_too_large_is_no_longer_kept_nor_asked_for() -> None:
    grown = play(Script(), env=Hoarder("x" * (MAX_STATE_LENGTH // 2)))[5, 0]
    assert [turn.state is None for turn in grown.turns] == [False, True, True]
    Hoarder.asked = 0
    large = play(Script(), env=Hoarder("x" * MAX_STATE_LENGTH))
    assert all(turn.state is None for t in large.values() for turn in t.turns)
    turns, members = sum(len(t.turns) for t in large.values()), len(large)
    assert Hoarder.asked <= 3 * members + turns, "the start's state, its hash, and the final one"


def test_actions_beyond_the_budget_are_not_taken() -> None:
    answers = dict.fromkeys(((5, 0, 0), (5, 0, 1)), "more || more</answer>")
    played = play(Script(answers), env=Counter(most=3))[5, 0]
    assert [turn.actions for turn in played.turns] == [("more", "more"), ("more",)]
    assert (played.stop_reason, played.final_state["count"]) == (StopReason.MAX_ACTIONS, 53)


def test_an_environment_that_cuts_an_episode_off_is_told_from_a_spent_budget() -> None:
    class Impatient(Counter):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            text, reward, done, _, info = super().step(action)
            return text, reward, done, self.count >= 52, info

    answers = dict.fromkeys(((5, 0, 0), (5, 0, 1)), "more || more</answer>")
    for most, reason in ((5, StopReason.TRUNCATED), (2, StopReason.MAX_ACTIONS)):
        played = play(Script(answers), env=Impatient(most=most))[5, 0]
        assert (played.stop_reason, played.final_state["count"]) == (reason, 52)


def test_what_follows_the_end_is_not_done() -> None:
    played = play(Script({(5, 0, 0): "leap || more</answer>"}))[5, 0]
    assert played.turns[0].actions == ("leap",)
    assert played.final_state["count"] == 100


def test_an_answer_that_never_stops_acts_but_is_not_valid() -> None:
    script = Script({(4, 0, 0): "more</answer>…"})
    played = play(script)[4, 0]
    first, second, *_ = played.turns
    assert (first.format_fault, first.actions) == ("cut_off", ("more",))
    assert first.rewards["format"] == -0.1
    assert second.prompt_ids[0] == CHAT.markers.end, "the next context closes it"


def test_a_trajectory_ends_where_another_turn_has_no_room() -> None:
    whole = play(Script())[4, 0]
    tokens = [len(t.prompt_ids) + len(t.completion.token_ids) for t in whole.turns]
    room = tokens[0] + len(whole.turns[1].prompt_ids) + CONFIG.max_response_tokens
    for context, turns in ((room - 1, 1), (room, 2)):
        played = play(Script(), replace(CONFIG, max_context=context))[4, 0]
        assert played.stop_reason is StopReason.CONTEXT_FULL
        assert len(played.turns) == turns


@pytest.mark.parametrize("threads", [1, 3])
def test_an_environment_that_raises_ends_its_own_trajectory(
    threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script({(4, 0, 1): "break</answer>"})
    played = play(script, replace(CONFIG, env_threads=threads))
    assert played[4, 0].stop_reason is StopReason.ENV_ERROR
    assert not played[4, 0].success
    assert "counter (seed 40): step raised RuntimeError: it broke" in caplog.text
    assert all(len(t.turns) == 3 for place, t in played.items() if place != (4, 0))


def test_threads_change_nothing_but_the_time() -> None:
    """16 trajectories whose every step waits for 20 ms, one by one and 16 at a time."""
    wide = replace(CONFIG, group_size=8)
    found, seconds = [], []
    for threads in (1, 16):
        began = time.monotonic()
        found.append(play(Script(), replace(wide, env_threads=threads), Counter(pause=0.02)))
        seconds.append(time.monotonic() - began)
    assert found[0] == found[1]
    assert seconds[1] < seconds[0] / 2
    assert not [each for each in threading.enumerate() if each.name.startswith("env")]


def test_a_rank_without_starts_plays_nothing() -> None:
    for threads in (1, 2):
        config = replace(CONFIG, env_threads=threads)
        sampling = Sampling(1.0, 4)
        assert not collect(Counter(), [], CHAT, Script(), config, iteration=0, sampling=sampling)


def test_an_interruption_leaves_no_thread_behind() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    arguments = (Counter(), STARTS, CHAT, Script(), replace(CONFIG, env_threads=2))
    sampling = Sampling(1.0, 4)
    with pytest.raises(KeyboardInterrupt):
        collect(*arguments, iteration=0, sampling=sampling, progress=interrupt)
    assert not [each for each in threading.enumerate() if each.name.startswith("env")]


def test_a_start_that_the_seed_does_not_decide_is_refused() -> None:
    class Moody(Counter):
        def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
            super().reset(**given)
            self.count += self.noise % 1000
            return self.render_text(), {}

    with pytest.raises(ValueError, match=r"Moody.reset\(seed=40\) gave 2 different initial states"):
        play(Script(), env=Moody())


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rollout\.env_threads is 0; it must be at least 1"):
        RolloutConfig(env_threads=0)
