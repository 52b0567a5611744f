"""Rubik's 2×2×2 cube (RAGEN-2, arXiv 2604.06268): turn faces until each has one color."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ragen_pl.envs.arrays import Features, one_hot
from ragen_pl.envs.base import (
    Symmetry,
    TextEnv,
    hash_without,
    one_of,
    refuse_after_end,
    resolve_seed,
)
from ragen_pl.envs.boards import BoardSplit
from ragen_pl.envs.picture import Drawing
from ragen_pl.envs.rubik import text as words
from ragen_pl.envs.rubik.cube import (
    ACTIONS,
    COLORS,
    SOLVED,
    SYMMETRIES,
    CubeSymmetry,
    check_cube,
    is_solved,
    turn,
)
from ragen_pl.envs.rubik.picture import draw_cube
from ragen_pl.envs.rubik.search import plan_progress, shortest_plan, solves
from ragen_pl.envs.rubik.starts import (
    FARTHEST_START,
    Scramble,
    ScrambledCube,
    canonical_digest,
    length_of_seed,
    sample_start,
)
from ragen_pl.envs.thoughts import StatementScore, compare, split_before

Thought = Literal["plan", "facts_and_plan"]


class Rubik(TextEnv):
    """Rubik's 2×2×2 cube: give every face one color.

    The twelve actions are quarter turns of the six faces, both ways. Solving the cube earns 1,
    everything else 0 (RAGEN-2's rewards).

    Args:
        shortest: Fewest turns of a scramble.
        longest: Most turns of a scramble; the lengths between are equally frequent.
        scramble: ``distance`` for cubes whose solution needs exactly as many turns as the scramble
            has, ``turns`` for any random turns, which may partly undo each other, as in RAGEN-2.
        split: ``train`` for starts to learn from, ``tuning`` to choose settings by, ``eval`` for an
            evaluation set. From four turns on no two of them share a start, or a rotated, recolored
            or mirrored one; the 153 nearer ones belong to all.
        max_actions: Maximum actions per trajectory.
        thought: Content of the expert's thought: the remaining turns (``plan``), or the colors of
            the eight corners and then the turns (``facts_and_plan``).
    """

    name = "rubik"
    actions: tuple[str, ...] = ACTIONS

    def __init__(
        self,
        shortest: int = 1,
        longest: int = 5,
        scramble: Scramble = "distance",
        split: BoardSplit = "train",
        max_actions: int = 20,
        thought: Thought = "plan",
    ) -> None:
        self.scramble: Scramble = one_of("scramble", scramble, Scramble)
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"shortest: {shortest} is not between 1 and longest, which is {longest}"
            )
        if scramble == "distance" and longest > FARTHEST_START:
            raise ValueError(
                f"longest: {longest} is more than {FARTHEST_START}, and cubes so far away are too "
                "rare to be found by chance: set scramble to 'turns'"
            )
        if max_actions < longest:
            raise ValueError(
                f"max_actions: {max_actions} is less than longest, which is {longest}: such a "
                "scramble could not be undone"
            )
        self.shortest, self.longest = shortest, longest
        self.split: BoardSplit = one_of("split", split, BoardSplit)
        self.max_actions = max_actions
        self.thought: Thought = one_of("thought", thought, Thought)
        self._cube = SOLVED
        self._num_actions = 0

    @property
    def instruction(self) -> str:
        """The task in words, with the layout of the net and the legend of the colors."""
        return (
            "Rubik's 2x2x2 cube: give every face one color.\n"
            "U, R, F, D, L and B turn the upper, right, front, lower, left and back face by a"
            " quarter, clockwise as seen from outside; with ' counterclockwise.\n"
            "The state is the unfolded cube: U above, then L, F, R and B side by side, D below.\n"
            f"Colors: {words.LEGEND}."
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Take the cube that the seed decides; the noise seed has no effect on the cube."""
        start = self._start_of(resolve_seed(self, seed))
        self._cube, self._num_actions = start.cube, 0
        info = {"difficulty": str(start.distance), "optimal_length": start.distance}
        return self.render_text(), info

    def _start_of(self, seed: int) -> ScrambledCube:
        return sample_start(seed, self.scramble, self.shortest, self.longest, self.split)

    def difficulty_of(self, seed: int) -> str:
        """Return the fewest turns from a start, from the seed alone where the scramble fixes it."""
        if self.scramble == "distance":
            return str(length_of_seed(seed, self.shortest, self.longest))
        return str(self._start_of(seed).distance)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Turn a face."""
        refuse_after_end(self, self._has_ended)
        if action not in self.actions:
            raise ValueError(f"action: {action!r} is none of {', '.join(self.actions)}")
        self._cube = turn(self._cube, action)
        self._num_actions += 1
        solved = is_solved(self._cube)
        truncated = self._has_ended and not solved
        return self.render_text(), float(solved), solved, truncated, {"success": solved}

    @property
    def _has_ended(self) -> bool:
        return is_solved(self._cube) or self._num_actions >= self.max_actions

    def render_text(self) -> str:
        """Return the unfolded net."""
        return "\n".join(words.net_rows(self._cube))

    def get_state(self) -> dict[str, Any]:
        """Return the color of each sticker, in the order of ``cube.FACES`` and of the net."""
        return {"stickers": self._cube, "num_actions": self._num_actions}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned.

        Raises:
            ValueError: if no turns lead from the solved cube to this one.
        """
        check_cube(state["stickers"])
        self._cube, self._num_actions = state["stickers"], state["num_actions"]

    def features(self) -> Features:
        """Return the color of each sticker as a row, in the order of ``get_state``."""
        return one_hot([COLORS.index(color) for color in self._cube], len(COLORS))

    def anchor_key(self) -> str:
        """Return a key of the state without the number of actions so far."""
        return hash_without(self.get_state(), "num_actions")

    def start_key(self) -> str:
        """Return a key of the cube, equal for all ways to hold, color or mirror it."""
        return canonical_digest(self._cube)[:16]

    def draw(self, state: Mapping[str, Any]) -> Drawing:
        """Draw the unfolded net as RGB."""
        return draw_cube(state)

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next turns of a shortest plan, which turns U, R and F alone."""
        plan = shortest_plan(self._cube)
        return self._thought_of(plan), plan[:max_actions]

    def _thought_of(self, plan: Sequence[str]) -> str:
        return " ".join((*self._facts(), *plan))

    def _facts(self) -> tuple[str, ...]:
        """Return the words before the plan of a thought."""
        return words.facts(self._cube) if self.thought == "facts_and_plan" else ()

    def thought_correct(self, thought: str) -> bool:
        """Return whether a thought, in the expert's format, is true of the current state.

        Its corners, if it has any, must be the current ones, and the last turn of its plan, but
        none before, must solve the cube.
        """
        plan = words.read_plan(thought, self._facts())
        return plan is not None and solves(self._cube, plan)

    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the thought with the given plan, as the expert would write its own, and its next
        turns."""
        return self._thought_of(plan), tuple(plan[:max_actions])

    def symmetries(self) -> tuple[Symmetry, ...]:
        """Return the 24 rotations and 24 reflections of the cube; its colors go along, so that
        scrambles of one solved cube become scrambles of the same one."""
        return _SYMMETRIES

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float:
        """Return the share of a thought's statements that hold: its corners, and its plan.

        Corners are compared place by place; a plan counts by ``search.plan_progress``.
        """
        stated, plan = split_before(thought.split(" "), ACTIONS)
        grade = plan_progress(self._cube, plan)
        return (compare(stated, self._facts()) + StatementScore(grade, 1)).share

    def vocabulary(self) -> Iterator[str]:
        """List half rows of the net's faces, words of a thought and lines of the instruction."""
        for line in self.instruction.split("\n"):
            yield from (line + "\n", line)
        yield from words.net_pieces()
        yield from words.thought_pieces(with_facts=self.thought == "facts_and_plan")


def _symmetry(each: CubeSymmetry) -> Symmetry:
    def image(state: Mapping[str, Any]) -> dict[str, Any]:
        return {**state, "stickers": each.image(state["stickers"])}

    return Symmetry(image, each.actions.__getitem__)


_SYMMETRIES = tuple(_symmetry(each) for each in SYMMETRIES)
