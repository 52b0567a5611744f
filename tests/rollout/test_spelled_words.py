"""Words without a token are told where they are much of what is imitated, and else not."""

from __future__ import annotations

import pytest

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.models.embedded import build_tokenizer
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.spelled_words import told_of_spelled_words
from tests.support.lamps import Stairs
from tests.support.lessons import demonstrate
from tests.support.recorded_play import embedded_chat

ROLLOUT = RolloutConfig(max_actions_per_turn=2, max_response_tokens=200, max_context=4000)


class Wordy(Stairs):
    """Describes what it lists no words for."""

    def render_text(self) -> str:
        return f"The corridor is long, and a {super().render_text()} lamp hangs over the corridor."

    def vocabulary(self) -> tuple[str, ...]:
        return ()


def test_letters_are_counted_by_hand() -> None:
    tokenizer = build_tokenizer(["tokens "])
    (row,) = tokenizer(["tokens corridor a b cd tokens door"], add_special_tokens=False).input_ids
    assert len(row) == 1 + 8 + 1 + 1 + 1 + 1 + 1 + 2 + 1 + 1 + 4
    told = told_of_spelled_words([tuple(row)], tokenizer)
    assert told.startswith(f"{12 / 22:.0%} of the tokens are letters of words that have no token")
    assert "such as corridor, door: list" in told
    assert told_of_spelled_words([tuple(row), (row[0],) * 40], tokenizer) == ""
    assert told_of_spelled_words([], tokenizer) == ""


@pytest.mark.parametrize(("env", "is_told"), [(Wordy(), True), (Stairs(), False)])
def test_a_warm_start_tells_of_them(
    env: TextEnv, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = embedded_chat(env, Prompts(), 2)
    demonstrate(env, chat, ROLLOUT, WarmStart(iterations=1, demonstrations=4), first_seed=0)
    shown = capsys.readouterr().out
    assert ("warning:" in shown and "such as corridor" in shown) is is_told


def test_the_default_task_has_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    env = Sokoban()
    config = WarmStart(iterations=1, demonstrations=4)
    demonstrate(env, embedded_chat(env, Prompts(), 2), ROLLOUT, config, first_seed=0)
    assert "warning" not in capsys.readouterr().out


def test_a_prompt_that_leaves_no_room_names_the_words() -> None:
    env = Wordy()
    short = RolloutConfig(max_actions_per_turn=2, max_response_tokens=20, max_context=60)
    config = WarmStart(iterations=1, demonstrations=4)
    with pytest.raises(ValueError, match=r"max_context to \d+ or more; \d+% of the tokens are let"):
        demonstrate(env, embedded_chat(env, Prompts(), 2), short, config, first_seed=0)
