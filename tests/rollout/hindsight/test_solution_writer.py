"""Hindsight imitation: the ways that groups found, and what is written of them."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_pl.envs import Bandit, FrozenLake, Sokoban
from ragen_pl.envs.base import Symmetry, TextEnv
from ragen_pl.envs.boards import mask_of
from ragen_pl.envs.frozen_lake.search import ACTIONS, Lake, action_values
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout import responses as parsing
from ragen_pl.rollout.actors import Move
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode, Episode
from ragen_pl.rollout.hindsight import HindsightImitation, Solutions
from ragen_pl.rollout.hindsight.writer import (
    Solution,
    SolutionWriter,
    Unwritten,
    best_way,
)
from ragen_pl.rollout.memory import Compact
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.transitions import SUCCESS, Transitions
from ragen_pl.types import EpisodeId, FormatFault, TokenRow, Trajectory, TrajectoryGroup
from tests.support.held_out import eval_seeds, layout_split, shown_states, start_keys
from tests.support.lamps import Stairs
from tests.support.words import vocabulary

CONFIG = RolloutConfig(
    group_size=3, max_turns=5, max_actions_per_turn=3, max_response_tokens=40, max_context=512
)
LONG = replace(CONFIG, max_turns=1, max_actions_per_turn=30)


def play(env: TextEnv, seed: int, actions: Sequence[str], member: int = 0) -> Trajectory:
    """Play actions in one turn."""
    episode = Episode(
        copy.deepcopy(env),
        LONG,
        seed=seed,
        noise_seed=member,
        episode_id=EpisodeId(0, seed, member),
    )
    episode.take(Move(tuple(actions)))
    return episode.trajectory()


def explored(seed: int) -> Iterator[Trajectory]:
    """Play every action in every state of a room that ten actions reach, each by one member."""
    env = Sokoban(max_actions=11)
    env.reset(seed=seed)
    ways: dict[str, tuple[str, ...]] = {env.anchor_key(): ()}
    todo = [env.anchor_key()]
    while todo:
        way = ways[todo.pop(0)]
        for action in env.actions:
            trajectory = play(env, seed, (*way, action))
            yield trajectory
            turn = trajectory.turns[0]
            after = turn.reached_keys[-1]
            if after not in ways and not trajectory.success and len(way) < 9:
                ways[after] = turn.actions
                todo.append(after)


@pytest.mark.parametrize("seed", [0, 4, 9, 13])  # rooms of 2 to 8 moves
def test_the_best_way_of_a_room_explored_to_the_end_is_the_solvers(seed: int) -> None:
    _, info = Sokoban().reset(seed=seed)
    members = list(explored(seed))
    random.Random(seed).shuffle(members)
    way = best_way(members)
    assert way is not None
    assert len(way) == info["optimal_length"]
    assert play(Sokoban(), seed, way).success


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 400), st.integers(1, 8), st.integers(0, 10_000))
def test_a_way_is_no_longer_than_any_members_and_succeeds(seed: int, size: int, luck: int) -> None:
    env, draw = Sokoban(max_actions=30), random.Random(luck)
    members = [play(env, seed, draw.choices(env.actions, k=30)) for _ in range(size)]
    solved = [len(member.turns[0].actions) for member in members if member.success]
    way = best_way(members)
    assert (way is None) == (not solved)
    if way is not None:
        assert len(way) <= min(solved)
        assert play(env, seed, way).success


class Ladder(TextEnv):
    """Climb four rungs; ``leap`` takes two of them, ``fall`` leads to the ground, ``jump`` to the
    top if the noise seed is 0 and nowhere else."""

    name, instruction = "ladder", "Climb."
    actions, max_actions = ("climb", "leap", "fall", "jump"), 8

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.rung, self.is_lucky = 0, (options or {}).get("noise_seed") == 0
        return self.render_text(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        is_jump = action == "jump" and self.is_lucky
        self.rung += {"climb": 1, "leap": 2, "fall": -self.rung}.get(action, 4 if is_jump else 0)
        return self.render_text(), 0.0, self.rung >= 4, False, {"success": self.rung >= 4}

    def render_text(self) -> str:
        return f"rung {self.rung}"

    def get_state(self) -> dict[str, Any]:
        return {"rung": self.rung}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.rung = state["rung"]

    def vocabulary(self) -> tuple[str, ...]:
        return "climb", "jump", "rung", "Climb."


def test_members_of_a_group_complete_each_others_ways() -> None:
    """One climbs to the top by a detour; the other knows a shortcut, but stops after it."""
    detour = play(Ladder(), 0, ["climb", "climb", "fall", "climb", "climb", "climb", "climb"], 1)
    assert detour.success
    assert best_way([detour]) == ("climb",) * 4
    shortcut = play(Ladder(), 0, ["leap"], 1)
    assert not shortcut.success
    assert best_way([detour, shortcut]) == ("leap", "climb", "climb")


def test_luck_is_outvoted_by_the_most_frequent_outcome() -> None:
    lucky, unlucky = play(Ladder(), 0, ["jump"], 0), play(Ladder(), 0, ["jump"], 1)
    climber = play(Ladder(), 0, ["climb"] * 4, 2)
    assert best_way([lucky]) == ("jump",)
    assert best_way([lucky, unlucky, unlucky, climber]) == ("climb",) * 4
    assert best_way([lucky, unlucky, unlucky]) is None


def test_in_a_mixture_solutions_with_summaries_are_not_rewritten() -> None:
    """``check`` refuses to write the policy's summaries for it, also where another environment of
    the mixture has its responses imitated."""
    rollout = replace(CONFIG, memory=Compact())
    config = HindsightImitation(variants=4, opening=2)
    with pytest.raises(ValueError, match=r"rollout\.memory is Compact"):
        config.check(Sokoban(), rollout, think=True)
    fitted = config.fitted(Sokoban(), rollout, think=True)
    assert not fitted.rewrites(Sokoban(), think=True)
    fitted.check(Sokoban(), rollout, think=True)
    assert config.fitted(Sokoban(), CONFIG, think=True) == config


class Quiz(Ladder):
    """Name the one right answer, after which the question looks as it did before it."""

    name, instruction = "quiz", "Answer."
    max_actions = 1

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.rung = 4 if action == "leap" else 1
        return self.render_text(), 0.0, True, False, {"success": action == "leap"}

    def render_text(self) -> str:
        return "how?"

    def anchor_key(self) -> str:
        return "how?"


def test_success_belongs_to_an_action_not_to_the_state_after_it() -> None:
    right, wrong = play(Quiz(), 0, ["leap"]), play(Quiz(), 0, ["fall"], 1)
    assert best_way([wrong, right]) == ("leap",)
    assert best_way([wrong]) is None
    prompts = Prompts(think=False, system="{instruction}", turn="{observation}")
    chat = make_chat(Quiz(), prompts)
    group = TrajectoryGroup(
        0,
        0,
        tuple(play_chat(Quiz(), chat, 0, [each], n) for n, each in enumerate(("fall", "leap"))),
    )
    (solution,) = solutions(writer(Quiz(), chat, HindsightImitation(opening=3)), group, 0)
    (row,) = solution.rows
    assert responses(row, chat) == ["<answer>leap</answer>"]


def test_a_way_of_many_actions_is_the_shortest() -> None:
    """Each trajectory is longer than value iteration has sweeps in a short run of it."""
    straight = {f"s{n}": {"on": Counter([f"s{n + 1}"])} for n in range(300)}
    straight["s300"] = {"on": Counter([SUCCESS])}
    detour = {f"d{n}": {"on": Counter([f"d{n + 1}"])} for n in range(400)}
    detour["d400"] = {"on": Counter([SUCCESS])}
    straight["s0"]["off"] = Counter(["d0"])
    seen = Transitions("s0", {**straight, **detour})
    assert [action for action, _ in seen.surest_way()] == ["on"] * 301
    assert len(seen.surest_ways().way_from("d399")) == 2
    assert seen.surest_ways().way_from("nowhere") == ()


def test_a_way_that_the_surest_action_hides_is_found() -> None:
    """From b one mostly comes back to a, so that the surest first action ends in a loop."""
    outcomes = {
        "a": {"1": Counter({"b": 10}), "2": Counter({SUCCESS: 6, "c": 4})},
        "b": {"1": Counter({"a": 6, SUCCESS: 4})},
    }
    assert Transitions("a", outcomes).surest_way() == (("2", SUCCESS),)


def test_over_ice_the_best_way_begins_nearly_as_well_as_any() -> None:
    env, losses = FrozenLake(), []
    for seed in range(20):
        env.reset(seed=seed)
        state, draw = env.get_state(), random.Random(seed)
        lake = Lake(env.size, mask_of(state["holes"]), state["goal"], env.intended)
        values = action_values(lake, env.max_actions)[-1][:, state["player"]]
        way = best_way(play(env, seed, draw.choices(ACTIONS, k=10), m) for m in range(200))
        if way is not None:
            losses.append(values.max() - values[ACTIONS.index(way[0])])
    assert len(losses) >= 18
    assert sum(losses) / len(losses) < 0.005  # of a probability


# --- writing ------------------------------------------------------------------------------------

PROMPTS = Prompts()


def make_chat(env: TextEnv, prompts: Prompts = PROMPTS) -> Chat:
    tokenizer = build_tokenizer(list(vocabulary(prompts, env, 3)))
    return Chat(prompts, tokenizer, read_markers(tokenizer), 3)


def play_chat(env: TextEnv, chat: Chat, seed: int, plan: Sequence[str], member: int) -> Trajectory:
    """Play a plan with empty thoughts, three actions a turn."""
    episode_id = EpisodeId(0, seed, member)
    episode = ChatEpisode(copy.deepcopy(env), chat, CONFIG, seed=seed, episode_id=episode_id)
    rest = list(plan)
    while rest and episode.begin_turn():
        episode.take(Move(tuple(rest[:3])))
        rest = rest[3:]
    if episode.stop_reason is None:  # as a policy that goes on in vain
        while episode.begin_turn():
            episode.take(Move(("Up",)))
    return episode.trajectory()


def solved_group(env: Sokoban, chat: Chat, seed: int) -> TrajectoryGroup:
    """Return a group of which one member solves the room, with an empty thought."""
    own = copy.deepcopy(env)
    own.reset(seed=seed)
    plan = own.expert_turn(random.Random(0), 10)[1]
    members = (
        play_chat(env, chat, seed, plan, 0),
        play_chat(env, chat, seed, ("Up",) * 10, 1),
    )
    assert [member.success for member in members] == [True, False]
    return TrajectoryGroup(seed, seed, members)


def responses(row: TokenRow, chat: Chat) -> list[str]:
    """Decode the responses of a row."""
    texts, run = [], list[int]()
    for token, is_sampled in zip((*row.token_ids, 0), (*row.loss_mask, False), strict=True):
        if is_sampled:
            run.append(token)
        elif run:
            texts.append(chat.opening_tag + chat.decode(run))
            run = []
    return texts


def boards(row: TokenRow, chat: Chat) -> list[list[str]]:
    """Return the grids of six rows that a row shows."""
    text = str(chat.tokenizer.decode(list(row.token_ids)))
    rows = [part.split("\n")[:6] for part in text.split("State:\n")[1:]]
    return [[cells[:6] for cells in grid] for grid in rows]


def writer(env: TextEnv, chat: Chat, config: HindsightImitation) -> SolutionWriter:
    return SolutionWriter(env, chat, CONFIG, config, run_seed=0)


def solutions(writer: SolutionWriter, group: TrajectoryGroup, iteration: int) -> list[Solution]:
    found = writer.found([group], iteration)
    return [each for each in found if isinstance(each, Solution)]


ENV = Sokoban()
CHAT = make_chat(ENV)


def test_a_solution_is_written_with_true_thoughts() -> None:
    group = solved_group(ENV, CHAT, 4)
    (solution,) = solutions(writer(ENV, CHAT, HindsightImitation()), group, 7)
    env = copy.deepcopy(ENV)
    env.reset(seed=4)
    (row,) = solution.rows
    success = False
    for response in responses(row, CHAT):
        parsed = parsing.parse_response(response, think=True, known=env.actions, max_actions=3)
        assert parsed.is_valid
        assert parsed.thought
        assert env.thought_correct(parsed.thought)
        for action in parsed.actions:
            success = env.step(action)[-1]["success"]
    assert success
    assert solution.success_rate == 0.5
    assert solution.num_actions == solution.fewest_sampled


def test_an_opening_is_played_before_the_first_turn() -> None:
    group = solved_group(ENV, CHAT, 13)
    config = HindsightImitation(variants=40, opening=2)
    (solution,) = solutions(writer(ENV, CHAT, config), group, 0)
    assert len(solution.rows) == 3, "openings of 0, 1 and 2 moves, each once"
    env = copy.deepcopy(ENV)
    env.reset(seed=13)
    plan = env.expert_turn(random.Random(0), 10)[1]
    starts = {env.render_text()}
    for action in plan[:2]:
        env.step(action)
        starts.add(env.render_text())
    assert {"\n".join(boards(row, CHAT)[0]) for row in solution.rows} == starts


def test_short_variants_end_after_their_first_turn() -> None:
    group = solved_group(ENV, CHAT, 13)
    config = HindsightImitation(variants=40, opening=3, first_turn_only=0.5)
    rows = [
        row
        for iteration in range(20)
        for solution in solutions(writer(ENV, CHAT, config), group, iteration)
        for row in solution.rows
    ]
    short = [row for row in rows if len(responses(row, CHAT)) == 1]
    assert 0.35 < len(short) / len(rows) < 0.65
    whole = {row.token_ids for row in rows if row not in short}
    assert all(any(ids[: len(row.token_ids)] == row.token_ids for ids in whole) for row in short)


@pytest.mark.parametrize(("max_turns", "is_written"), [(1, False), (2, True)])
def test_a_short_variant_is_written_only_if_its_way_succeeds(
    max_turns: int, is_written: bool
) -> None:
    """Only the first of two turns is written, and the rest of the way is played: it succeeds within
    the turns of a trajectory, or not. Without luck a jump in the second turn leads nowhere."""
    chat = make_chat(Ladder(), Prompts(think=False))
    config = HindsightImitation(first_turn_only=1.0)
    rollout = replace(CONFIG, max_turns=max_turns)
    climbed = TrajectoryGroup(0, 0, (play(Ladder(), 0, ["climb"] * 4, 1),))
    found = SolutionWriter(Ladder(), chat, rollout, config, 0).found([climbed], 0)
    if is_written:
        (solution,) = found
        assert isinstance(solution, Solution)
        (row,) = solution.rows
        assert responses(row, chat) == ["<answer>climb || climb || climb</answer>"]
    else:
        assert found == [Unwritten("the way did not succeed when it was played again")]
    lucky = play(Ladder(), 0, ["climb", "climb", "climb", "jump"], 0)
    assert lucky.success
    own = writer(Ladder(), chat, config)
    assert solutions(own, TrajectoryGroup(0, 0, (lucky,)), 0) == []


def in_split(env: Sokoban | FrozenLake, split: Any) -> Sokoban | FrozenLake:
    other = copy.deepcopy(env)
    other.split = split
    return other


def imitated(env: Sokoban | FrozenLake, seeds: Iterable[int]) -> list[TextEnv]:
    """Return the states in which variants of the solutions of some starts are imitated."""
    sure = copy.deepcopy(env)
    if isinstance(sure, FrozenLake):
        sure.intended = 1.0
    chat = make_chat(env)
    config = HindsightImitation(variants=6, opening=4, symmetries=True)
    rollout = replace(CONFIG, max_turns=8, max_context=2048)
    found = list[TextEnv]()
    for seed in seeds:
        sure.reset(seed=seed)
        plan = sure.expert_turn(random.Random(0), 20)[1]
        group = TrajectoryGroup(seed, seed, (play(sure, seed, plan),))
        for solution in solutions(SolutionWriter(env, chat, rollout, config, 0), group, 0):
            for row in solution.rows:
                text = str(chat.tokenizer.decode(list(row.token_ids)))
                found += shown_states(env, text)
    return found


@pytest.mark.parametrize(
    ("env", "num_groups"),
    [
        (Sokoban(), 40),
        (Sokoban(size=8, num_boxes=2, max_actions=20), 20),
        (FrozenLake(), 80),
    ],
    ids=["sokoban", "two boxes", "frozen lake"],
)
def test_no_state_of_an_evaluation_set_is_imitated(
    env: Sokoban | FrozenLake, num_groups: int
) -> None:
    """Though variants begin in rotated and reflected tasks, and on the way of a solution."""
    held_out = in_split(env, "eval")
    starts = start_keys(held_out, 256)
    states = imitated(env, range(num_groups))
    assert {layout_split(state) for state in states} == {"train"}
    keys = {state.start_key() for state in states}
    assert not keys & starts
    assert len(keys) > num_groups
    assert len({state.render_text() for state in states}) > 1.5 * len(keys), "symmetries"
    seen = imitated(held_out, eval_seeds(held_out, 10))  # what the above would not survive
    assert {layout_split(state) for state in seen} == {"eval"}
    assert {state.start_key() for state in seen} & starts


@pytest.mark.parametrize("kind", [Sokoban, FrozenLake])
def test_symmetries_map_steps_to_steps(kind: type[TextEnv]) -> None:
    env: Any = kind() if kind is Sokoban else FrozenLake(intended=1.0)
    assert len(env.symmetries()) == 8
    for seed in range(6):
        draw = random.Random(seed)
        env.reset(seed=seed)
        for _ in range(8):
            state, action = env.get_state(), draw.choice(env.actions)
            outcome = env.step(action)
            following = env.get_state()
            for symmetry in env.symmetries():
                image = copy.deepcopy(env)
                image.set_state(symmetry.state(state))
                assert image.step(symmetry.action(action))[1:4] == outcome[1:4]
                assert image.get_state() == symmetry.state(following)
            if outcome[2] or outcome[3]:
                break


@pytest.mark.parametrize("is_valid", [True, False])
def test_sampled_responses_are_imitated_unless_they_broke_the_format(
    is_valid: bool,
) -> None:
    """And unless the environment found their thought untrue."""
    group = solved_group(ENV, CHAT, 9)
    solver, other = group.trajectories
    assert len(solver.turns) > 1
    solver = replace(
        solver, turns=tuple(replace(turn, thought_correct=None) for turn in solver.turns)
    )
    broken = replace(
        solver.turns[0],
        format_fault=None if is_valid else FormatFault.OUTSIDE_TEXT,
        thought_correct=False if is_valid else None,
    )
    solver = replace(solver, turns=(broken, *solver.turns[1:]))
    group = replace(group, trajectories=(solver, other))
    (solution,) = solutions(writer(ENV, CHAT, HindsightImitation(rewrite=False)), group, 0)
    (row,) = solution.rows
    assert row.token_ids == solver.token_ids
    first = len(solver.turns[0].token_ids)
    assert not any(row.loss_mask[:first])
    assert row.loss_mask[first:] == solver.loss_mask[first:]


def test_an_environment_without_hindsight_thoughts_has_its_responses_imitated() -> None:
    chat = make_chat(Ladder())
    climber = play_chat(Ladder(), chat, 0, ["climb"] * 4, 1)
    assert climber.success
    group = TrajectoryGroup(0, 0, (climber,))
    (solution,) = solutions(writer(Ladder(), chat, HindsightImitation()), group, 0)
    assert solution.rows == (TokenRow(climber.token_ids, climber.loss_mask),)


def test_all_members_of_the_highest_return_are_imitated() -> None:
    chat = make_chat(Ladder())
    plans = [["climb"] * 4, ["leap", "leap"], ["climb"] * 4, ["fall", *["climb"] * 4], ["fall"] * 8]
    played = [play_chat(Ladder(), chat, 0, plan, n + 1) for n, plan in enumerate(plans)]
    group = TrajectoryGroup(0, 0, tuple(played))
    (solution,) = solutions(writer(Ladder(), chat, HindsightImitation()), group, 0)
    assert {row.token_ids for row in solution.rows} == {
        t.token_ids for t in played[:2] + played[3:4]
    }
    assert (solution.num_actions, solution.success_rate) == (2, 0.8)
    paid = replace(played[1].turns[-1], rewards={"env": 1.0})
    better = replace(played[1], turns=(*played[1].turns[:-1], paid))
    group = replace(group, trajectories=(played[0], better, *played[2:]))
    (solution,) = solutions(writer(Ladder(), chat, HindsightImitation()), group, 0)
    assert [row.token_ids for row in solution.rows] == [better.token_ids]


def test_without_thoughts_actions_alone_are_rewritten() -> None:
    chat = make_chat(Ladder(), Prompts(think=False))
    wasteful = play_chat(Ladder(), chat, 0, ["jump", "climb", "jump", *["climb"] * 3], 1)
    assert wasteful.success
    group = TrajectoryGroup(0, 0, (wasteful,))
    (solution,) = solutions(writer(Ladder(), chat, HindsightImitation()), group, 0)
    (row,) = solution.rows
    assert " ".join(responses(row, chat)).count("climb") == 4
    assert "jump" not in " ".join(responses(row, chat))


def test_a_way_that_fails_when_it_is_played_again_is_left_out() -> None:
    chat = make_chat(Ladder(), Prompts(think=False))
    lucky = replace(play(Ladder(), 0, ["jump"], 0), group_id=0)
    assert lucky.success
    group = TrajectoryGroup(0, 0, (lucky,))
    assert solutions(writer(Ladder(), chat, HindsightImitation()), group, 0) == []


class Wordless(Sokoban):
    """A room whose solutions it has no words for."""

    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> None:  # type: ignore[override]
        return None


class Lopsided(Sokoban):
    """A room whose symmetries fail."""

    def symmetries(self) -> tuple[Symmetry, ...]:
        raise KeyError("north")


@pytest.mark.parametrize(("env", "symmetries"), [(Wordless(), False), (Lopsided(), True)])
def test_a_solution_that_cannot_be_written_is_left_out(env: Sokoban, symmetries: bool) -> None:
    group = solved_group(ENV, CHAT, 4)
    config = HindsightImitation(symmetries=symmetries)
    assert solutions(writer(env, CHAT, config), group, 0) == []


class Typed(Ladder):
    """A ladder whose actions are typed."""

    actions = None  # type: ignore[assignment]


def test_a_written_turn_of_free_text_is_one_action() -> None:
    chat = make_chat(Typed(), Prompts(think=False))
    climber = play(Typed(), 0, ["climb"] * 4, 1)
    group = TrajectoryGroup(0, 0, (climber,))
    config = replace(CONFIG, max_turns=8)
    own = SolutionWriter(Typed(), chat, config, HindsightImitation(), 0)
    (solution,) = solutions(own, group, 0)
    assert responses(solution.rows[0], chat) == ["<answer>climb</answer>"] * 4


def test_on_ice_what_is_written_holds_if_nothing_slips() -> None:
    env = FrozenLake()
    chat = make_chat(env)
    config = HindsightImitation(variants=6, opening=2, symmetries=True)
    num_rows = 0
    for seed in range(30):
        own = FrozenLake(intended=1.0)
        own.reset(seed=seed)
        plan = own.expert_turn(random.Random(0), 10)[1]
        group = TrajectoryGroup(seed, seed, (play(own, seed, plan),))
        for solution in solutions(writer(env, chat, config), group, 0):
            num_rows += len(solution.rows)
            for row in solution.rows:
                pattern = parsing.ANSWER.pattern(think=True)
                thoughts = [pattern.search(text)[1] for text in responses(row, chat)]  # type: ignore[index]
                for thought, later in pairwise(thoughts):
                    assert later.split()[2:] == thought.split()[5:], "three steps are done"
    assert num_rows > 30


def test_a_group_without_success_teaches_nothing() -> None:
    failed = play_chat(ENV, CHAT, 4, ("Up",) * 10, 0)
    group = TrajectoryGroup(4, 4, (failed,))
    assert solutions(writer(ENV, CHAT, HindsightImitation()), group, 0) == []


@pytest.mark.parametrize(
    ("env", "keys", "message"),
    [
        (Bandit(), {"symmetries": True}, "hindsight.symmetries is True, but Bandit has no hind"),
        (Bandit(), {"opening": 1}, "hindsight.opening is 1, but Bandit has no hindsight_turn"),
        (Sokoban(), {"rewrite": False, "variants": 2}, "hindsight.variants is 2, but hindsight.re"),
    ],
)
def test_keys_that_cannot_act_are_refused(env: TextEnv, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HindsightImitation(**keys).check(env, CONFIG, think=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("updates", 0),
        ("batch_size", 0),
        ("memory", 0),
        ("fresh", 1.1),
        ("first_turn_only", -0.1),
        ("opening", -1),
    ],
)
def test_values_out_of_range_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"hindsight.{key} is {value}"):
        HindsightImitation(**{key: value})


# --- what could not be written ----------------------------------------------------------------


class Speechless(Stairs):
    def hindsight_turn(  # type: ignore[override]
        self, plan: Sequence[str], max_actions: int
    ) -> tuple[str, tuple[str, ...]] | None:
        return None


class Untrue(Stairs):
    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "dim", tuple(plan[:max_actions])


class Wordy(Stairs):
    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "lit " * 100, tuple(plan[:max_actions])


def solved(env: TextEnv, seeds: Iterable[int]) -> list[TrajectoryGroup]:
    groups = []
    for seed in seeds:
        env.reset(seed=seed)
        right = "on" if env.render_text() == "lit" else "off"
        groups.append(TrajectoryGroup(seed, seed, (play(env, seed, [right, right]),)))
    return groups


def solutions_of(env: TextEnv) -> tuple[Solutions, dict[str, Chat]]:
    tokenizer = build_tokenizer([*vocabulary(Prompts(), env, 3), "dim"])
    chat = Chat(Prompts(), tokenizer, read_markers(tokenizer), 3)
    config = HindsightImitation(updates=1)
    solutions = Solutions(config, {"": env}, {"": CONFIG}, think=True, run_seed=0)
    return solutions, {"": chat}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Speechless, "hindsight_turn returned None (8)"),
        (Untrue, "thought_correct found a thought of hindsight_turn untrue (8)"),
        (Wordy, "its text is longer than rollout.max_response_tokens (8)"),
    ],
)
def test_a_run_that_writes_nothing_is_told_once_and_why(kind: type[TextEnv], reason: str) -> None:
    env = kind()
    solutions, chat = solutions_of(env)
    assert solutions.batches(solved(env, range(7)), chat, 0) == []
    assert solutions.warning() is None, "seven may be bad luck"
    assert solutions.batches(solved(env, [7]), chat, 1) == []
    told = solutions.warning()
    assert told is not None
    assert "has written down none of 8 ways to success" in told
    assert reason in told
    solutions.batches(solved(env, range(8)), chat, 2)
    assert solutions.warning() is None, "once"


@pytest.mark.parametrize(
    ("envs", "keys", "end"),
    [
        ({"": Sokoban()}, {}, "which no expert is asked for"),
        ({"": Sokoban()}, {"alone": True}, "asked for, without RL's updates"),
        (
            {"": Sokoban()},
            {"symmetries": True},
            "asked for; it uses the symmetries of the task, which are given knowledge",
        ),
        (
            {"room": Sokoban(), "arms": Bandit(), "ice": FrozenLake()},
            {"symmetries": True},
            "it uses the symmetries of room, ice, which are given knowledge",
        ),
    ],
)
def test_scores_say_what_they_owe_to_hindsight(
    envs: dict[str, TextEnv], keys: dict[str, Any], end: str
) -> None:
    rollouts = dict.fromkeys(envs, CONFIG)
    config = HindsightImitation(**keys)
    solutions = Solutions(config, envs, rollouts, think=True, run_seed=0)
    account = solutions.account(with_rl=not config.alone)
    assert account.startswith("imitation" if config.alone else "RL and imitation")
    assert account.endswith(end)


def test_a_run_that_writes_something_is_told_nothing() -> None:
    solutions, chat = solutions_of(Stairs())
    assert solutions.batches(solved(Stairs(), [0]), chat, 0)
    solutions.envs = {"": Speechless()}
    solutions.batches(solved(Speechless(), range(9)), chat, 1)
    assert solutions.warning() is None
