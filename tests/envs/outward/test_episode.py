"""An environment played by messages: every message is answered, every episode ends."""

from __future__ import annotations

import copy

import pytest

from ragen_pl.envs import Bandit, Sokoban
from ragen_pl.envs.boundary import EnvError
from ragen_pl.envs.outward.episode import OutOfTurnError, OutwardEpisode
from tests.support.faulty import FaultyLamp, always
from tests.support.lamps import Lamp


def test_messages_play_what_step_plays() -> None:
    env = Sokoban()
    episode, twin = OutwardEpisode(env), copy.deepcopy(env)
    task, reply = episode.begin(5, 1)
    text, _ = twin.reset(seed=5, options={"noise_seed": 1})
    assert (reply.text, reply.reward, reply.done) == (text, 0.0, False)
    assert (task.instruction, task.actions) == (twin.instruction, twin.actions)
    for action in ("Up", "Left", "Down", "Right"):
        text, reward, terminated, truncated, info = twin.step(action)
        reply = episode.act(action)
        assert (reply.text, reply.reward) == (text, reward)
        assert (reply.terminated, reply.truncated) == (terminated, truncated)
        assert reply.success == info["success"]
    assert episode.state() == twin.get_state()


def test_names_in_any_case_and_white_space_are_taken() -> None:
    one, other = OutwardEpisode(Sokoban()), OutwardEpisode(Sokoban())
    one.begin(3, 0)
    other.begin(3, 0)
    assert one.act(" UP\n") == other.act("Up")


def test_what_is_no_action_changes_nothing_and_is_told_the_actions() -> None:
    episode = OutwardEpisode(Sokoban())
    _, first = episode.begin(3, 0)
    before = episode.state()
    for message in ("jump", "", "Up || Down", "x" * 9000):
        reply = episode.act(message)
        assert reply.text.endswith(f"is no action. Actions: Up, Down, Left, Right\n{first.text}")
        assert len(reply.text) < len(first.text) + 200
        assert (reply.reward, reply.done, reply.success) == (0.0, False, False)
    assert episode.state() == before


def test_every_episode_ends_whatever_is_said() -> None:
    episode = OutwardEpisode(Sokoban(max_actions=4))
    episode.begin(3, 0)
    assert [episode.act("jump").done for _ in range(4)] == [False, False, False, True]
    with pytest.raises(OutOfTurnError, match="has ended: reset first"):
        episode.act("Up")
    episode.begin(4, 0)
    assert episode.act("Up").done is False


def test_nothing_is_said_before_the_reset() -> None:
    episode = OutwardEpisode(Sokoban())
    with pytest.raises(OutOfTurnError, match="has not begun: reset first"):
        episode.act("Up")
    with pytest.raises(OutOfTurnError, match="has not begun"):
        episode.state()


def test_names_that_the_start_decides_are_told_with_it() -> None:
    episode = OutwardEpisode(Bandit("named"))
    arms = {episode.begin(seed, 0)[0].actions for seed in range(4)}
    assert len(arms) > 1


def test_the_environment_itself_stays_as_it_is() -> None:
    env = Lamp()
    env.reset(seed=1)
    before = env.get_state()
    episode = OutwardEpisode(env)
    episode.begin(0, 0)
    episode.act("on")
    assert env.get_state() == before


@pytest.mark.parametrize("method", ["reset", "step", "instruction", "reward"])
def test_what_an_environment_does_wrong_ends_the_episode(method: str) -> None:
    instead = float("nan") if method == "reward" else ZeroDivisionError("ouch")
    episode = OutwardEpisode(FaultyLamp(method, instead, always))

    def play() -> None:
        episode.begin(0, 0)
        episode.act("on")

    with pytest.raises(EnvError):
        play()
    with pytest.raises(OutOfTurnError):
        episode.act("on")
