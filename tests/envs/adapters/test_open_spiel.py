"""Seats of OpenSpiel's games: what is random when, who plays well, what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspiel", reason="needs the extra envs: pip install -e '.[envs]'")

from ragen_pl.envs.adapters import MCTS, Minimax, MonteCarlo, OpenSpiel, RandomPlay
from ragen_pl.envs.splits import Split, split_of


def score(env: OpenSpiel, games: int, choose: Callable[[OpenSpiel, random.Random], str]) -> float:
    """Return the mean return of a way to play."""
    total = 0.0
    for seed in range(games):
        env.reset(seed=seed, options={"noise_seed": seed})
        rng, has_ended = random.Random(seed), False
        while not has_ended:
            _, reward, terminated, truncated, _ = env.step(choose(env, rng))
            total, has_ended = total + reward, terminated or truncated
    return total / games


def by_expert(env: OpenSpiel, rng: random.Random) -> str:
    return env.expert_turn(rng, 1)[1][0]


def legal_names(env: OpenSpiel) -> list[str]:
    return env.render_text().split("Legal: ")[1].split(", ")


def at_random(env: OpenSpiel, rng: random.Random) -> str:
    return rng.choice(legal_names(env))


def test_perfect_play_never_loses_and_two_perfect_players_draw() -> None:
    assert score(OpenSpiel(expert=Minimax(), split="all", max_actions=9), 40, by_expert) > 0.7
    perfect = OpenSpiel(expert=Minimax(), opponent=Minimax(), split="all", max_actions=9)
    assert score(perfect, 10, by_expert) == 0.0
    assert score(perfect, 20, at_random) < -0.3


@pytest.mark.parametrize(
    ("game", "expert"),
    [
        ("connect_four", MCTS(30)),
        ("connect_four", MonteCarlo(8, 20)),
        ("leduc_poker", MCTS(60)),
        ("leduc_poker", MonteCarlo(20)),
    ],
)
def test_experts_beat_random_play(game: str, expert: Any) -> None:
    env = OpenSpiel(game, expert=expert, split="all")
    assert score(env, 24, by_expert) > score(env, 24, at_random)


def test_opponents_follow_their_strength() -> None:
    weak = OpenSpiel("connect_four", opponent=RandomPlay(), split="all")
    strong = OpenSpiel("connect_four", opponent=MCTS(60), split="all")
    assert score(strong, 12, at_random) < score(weak, 12, at_random)


def test_the_seed_decides_the_start_and_the_noise_what_follows() -> None:
    env = OpenSpiel("2048(max_tile=64)", split="all")
    boards = set()
    for noise_seed in range(6):
        start, _ = env.reset(seed=4, options={"noise_seed": noise_seed})
        boards.add((start, env.step("Up")[0]))
    assert len({start for start, _ in boards}) == 1
    assert len(boards) > 1


def test_who_moves_first_belongs_to_the_start() -> None:
    env = OpenSpiel("connect_four", opponent=MCTS(10), split="all")
    second = [seed for seed in range(20) if env.reset(seed=seed)[1]["difficulty"] == "seat 2"]
    assert 3 < len(second) < 17
    starts = {env.reset(seed=second[0], options={"noise_seed": n})[0] for n in range(5)}
    assert len(starts) == 1
    assert "x" in starts.pop().split("Legal")[0]


def test_an_illegal_action_costs_and_changes_nothing_but_the_count() -> None:
    env = OpenSpiel("leduc_poker", split="all", illegal_penalty=-0.25, max_actions=3)
    env.reset(seed=0)
    position = env.get_state()["position"]
    assert "Fold" not in env.render_text().split("Legal: ")[1]
    for number in range(3):
        text, reward, terminated, truncated, info = env.step("Fold")
        assert (reward, info["is_legal"], info["success"]) == (-0.25, False, False)
        assert "Not legal: Fold" in text
        assert env.get_state()["position"] == position
        assert (terminated, truncated) == (False, number == 2)


def test_hidden_cards_are_not_shown_and_do_not_tell_starts_apart() -> None:
    assert "??" in OpenSpiel("blackjack", split="all").reset(seed=2)[0]
    env = OpenSpiel("leduc_poker", split="all")
    keys: dict[str, set[tuple[str, str]]] = {}
    for seed in range(100):
        text, _ = env.reset(seed=seed)
        keys.setdefault(env.start_key(), set()).add((text, env.get_state()["position"]))
    assert all(len({text for text, _ in starts}) == 1 for starts in keys.values())
    assert any(len(starts) > 1 for starts in keys.values())


def test_success_is_a_win_or_what_the_keys_say() -> None:
    draws = OpenSpiel(opponent=Minimax(), expert=Minimax(), split="all", success_return=-0.5)
    draws.reset(seed=0)
    info: dict[str, Any] = {"success": False}
    ended = False
    while not ended:
        _, reward, ended, _, info = draws.step(by_expert(draws, random.Random(0)))
    assert (reward, info["success"]) == (0.0, True)
    tile = OpenSpiel("2048(max_tile=8)", success_pattern=r"\b8\b", split="all", max_actions=200)
    tile.reset(seed=0)
    ended = False
    while not ended:
        text, _, ended, _, info = tile.step(at_random(tile, random.Random(1)))
    assert info["success"] == (" 8" in text)


def test_names_of_actions_are_fixed_where_there_are_few() -> None:
    assert OpenSpiel("2048").actions == ("Up", "Right", "Down", "Left")
    assert OpenSpiel("othello").actions is None
    env = OpenSpiel("tic_tac_toe", split="all")
    assert len(env.actions or ()) == 18
    env.reset(seed=0)
    assert len(env.actions or ()) == 9


def test_an_opening_gives_more_starts() -> None:
    plain = OpenSpiel("tic_tac_toe", split="all")
    opened = OpenSpiel("tic_tac_toe", split="all", opening=3)

    def starts(env: OpenSpiel) -> int:
        return len({env.reset(seed=seed) and env.start_key() for seed in range(60)})

    assert starts(plain) <= 10 < starts(opened)


def test_an_opening_longer_than_the_game_is_an_error() -> None:
    env = OpenSpiel("tic_tac_toe", split="all", opening=30)
    with pytest.raises(ValueError, match=r"opening: 100 games .* shorten the opening"):
        env.reset(seed=0)


def test_case_counts_where_it_tells_actions_apart() -> None:
    env = OpenSpiel("chess", split="all", expert=RandomPlay())
    env.reset(seed=0)
    rng = random.Random(0)
    for _ in range(3000):  # until a pawn and a bishop on the b file can take on the same square
        legal = legal_names(env)
        both = [name for name in legal if name.startswith("b") and f"B{name[1:]}" in legal]
        if both:
            break
        _, _, terminated, truncated, _ = env.step(rng.choice(legal))
        if terminated or truncated:
            env.reset(seed=rng.randrange(10_000))
    pawn, bishop, other = both[0], f"B{both[0][1:]}", next(n for n in legal if n[0] == "N")
    assert env._number_of(pawn) != env._number_of(bishop)
    assert env._number_of(other.lower()) == env._number_of(other)
    assert env._number_of(bishop.upper()) is None


def test_a_game_with_one_start_cannot_be_split() -> None:
    env = OpenSpiel("cliff_walking", success_return=-100.0, split="train")
    env.reset(seed=0)
    other: Split = "eval" if split_of(env.start_key()) == "train" else "train"
    held_out = OpenSpiel("cliff_walking", split=other)
    with pytest.raises(ValueError, match="too few of them to hold some out; use split: all"):
        held_out.reset(seed=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"game": "tic_tac_to"}, "game: Unknown game 'tic_tac_to'"),
        ({"game": "hex(size=3)"}, "game: Unknown parameter 'size'"),
        ({"game": "goofspiel"}, r"turn_based_simultaneous_game\(game=goofspiel\)"),
        ({"game": "2048", "expert": MCTS()}, "2048 pays on the way: use MonteCarlo"),
        ({"game": "cliff_walking", "expert": Minimax()}, "cliff_walking pays on the way: use Mon"),
        ({"game": "leduc_poker", "opponent": Minimax()}, "hides information"),
        ({"game": "chess", "expert": Minimax()}, "use MCTS or MonteCarlo"),
        ({"game": "liars_dice", "expert": MonteCarlo()}, "does not sample what is hidden"),
        ({"view": "state"}, "view: 'state' is unknown"),
        ({"split": "evla"}, "did you mean 'eval'"),
        ({"opening": -1}, "opening: -1"),
        ({"max_actions": 0}, "max_actions: 0"),
        ({"success_pattern": "("}, "success_pattern: '\\('"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        OpenSpiel(**arguments)


def test_actions_whose_names_change_with_the_position_are_free_text() -> None:
    env = OpenSpiel("ultimate_tic_tac_toe", opening=1, split="all")
    assert not env.actions
    text, _ = env.reset(seed=1)
    assert "Local board" in text.partition("Legal:")[2]


@pytest.mark.parametrize("game", ["leduc_poker", "blackjack", "kuhn_poker", "connect_four"])
@pytest.mark.parametrize("player", [MCTS(40), MonteCarlo(5)])
def test_players_repeat_themselves_with_equal_seeds(game: str, player: Any) -> None:
    env = OpenSpiel(game, expert=player, split="all")
    env.reset(seed=1)
    for seed in range(20):
        choices = {env.expert_turn(random.Random(seed), 1) for _ in range(3)}
        assert len(choices) == 1


@pytest.mark.parametrize(
    "make", [lambda: MCTS(0), lambda: MCTS(1, 0), lambda: MonteCarlo(0), lambda: MonteCarlo(1, 0)]
)
def test_players_do_something(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="0 is not positive"):
        make()


def test_an_exact_search_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_pl.envs.adapters.players._MOST_POSITIONS", 20)
    env = OpenSpiel("hex(board_size=3)", expert=Minimax(), split="all")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="more than 20 positions: use MCTS or MonteCarlo"):
        env.expert_turn(random.Random(0), 1)
