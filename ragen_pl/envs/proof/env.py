"""``Proof``: prove a theorem, one tactic a step, against a proof assistant."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from ragen_pl.envs.base import TextEnv, hash_without, one_of, refuse_after_end, resolve_seed
from ragen_pl.envs.pieces import frequent_pieces
from ragen_pl.envs.proof.coqtop import CoqTop
from ragen_pl.envs.proof.library import CoqLibrary
from ragen_pl.envs.proof.prover import Library, Prover, Theorem
from ragen_pl.envs.splits import Split, split_of

STEP, ACCEPTED, REJECTED, PROVED, OUT_OF_STEPS = -0.1, 1.0, -1.0, 10.0, -2.0
"""RAGEN-2's rewards for Lean: of each step, of a tactic by its verdict (a slow one is rejected), of
the proof, and of its absence after the last step."""
_LONGEST = 2000
"""Characters shown of goals and of an error."""


class Proof(TextEnv):
    """A theorem to prove: each action is one tactic, and the observation is what is left to prove.

    A tactic that fails changes nothing and is answered with the error. A proof is success if the
    prover's kernel accepts it and it rests on no axioms.

    The rewards are RAGEN-2's for Lean. An accepted tactic earns 1, so that tactics which change
    nothing earn, too: ``progress_only`` refuses those.

    Args:
        library: The source of theorems; null for the standard library of Coq.
        prover: The proof assistant, of the library's language; null for ``CoqTop``.
        max_actions: Most tactics of an episode.
        progress_only: Whether a tactic after which the goals are as they were is rejected.
        split: ``train`` or ``eval`` for disjoint theorems; ``all`` for all of them.
    """

    name = "proof"
    actions: tuple[str, ...] | None = None

    def __init__(
        self,
        library: Library | None = None,
        prover: Prover | None = None,
        max_actions: int = 30,
        progress_only: bool = True,
        split: Split = "train",
    ) -> None:
        if max_actions < 1:
            raise ValueError(f"max_actions: {max_actions} is not positive")
        self.max_actions, self.progress_only = max_actions, progress_only
        self.split: Split = one_of("split", split, Split)
        self.library: Library = CoqLibrary() if library is None else library
        self.prover: Prover = CoqTop() if prover is None else prover
        if not self._of_split():
            raise ValueError(f"split: there are no theorems in {split!r}; use split: all")
        self._theorem_name = ""
        self._script: tuple[str, ...] = ()
        self._goals = self._message = ""
        self._num_actions = 0
        self._proved = False

    def _of_split(self) -> list[Theorem]:
        return [
            theorem
            for theorem in self.library.theorems()
            if self.split in ("all", split_of(theorem.name))
        ]

    @property
    def instruction(self) -> str:
        """The task in words."""
        return (
            "Prove the theorem, one tactic a step. An error changes nothing.\n"
            f"The state is what is left to prove: {self.prover.layout}."
        )

    @property
    def actions_text(self) -> str:
        """What a prompt says of the actions."""
        return f"one tactic, such as {self.prover.example}"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Pose the theorem that the seed decides; nothing is random after it."""
        theorems = self._of_split()
        theorem = random.Random(f"proof {resolve_seed(self, seed)}").choice(theorems)
        self._theorem_name, self._script = theorem.name, ()
        self._num_actions, self._proved, self._message = 0, False, ""
        self._goals = self.prover.check(theorem, ()).goals
        info = {"difficulty": str(len(theorem.script))} if theorem.script else {}
        return self.render_text(), info

    @property
    def _theorem(self) -> Theorem:
        return self._named(self._theorem_name)

    def _named(self, name: str) -> Theorem:
        for theorem in self.library.theorems():
            if theorem.name == name:
                return theorem
        raise ValueError(f"theorem: this library has none named {name!r}")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Try a tactic."""
        refuse_after_end(self, self._has_ended)
        script = (*self._script, action)
        check = self.prover.check(self._theorem, script)
        is_still = check.goals == self._goals and not check.proved
        accepted = check.verdict == "accepted" and not (self.progress_only and is_still)
        self._message = "" if accepted else check.message or "the tactic changes nothing"
        if accepted:
            self._script, self._goals, self._proved = script, check.goals, check.proved
        self._num_actions += 1
        reward = STEP + (ACCEPTED if accepted else REJECTED) + (PROVED if check.proved else 0.0)
        truncated = self._has_ended and not self._proved
        if truncated:
            reward += OUT_OF_STEPS
        info = {"success": self._proved, "accepted": accepted}
        return self.render_text(), reward, self._proved, truncated, info

    @property
    def _has_ended(self) -> bool:
        return self._proved or self._num_actions >= self.max_actions

    def render_text(self) -> str:
        """Return the goals and, after an error, what it was."""
        if self._proved:
            return "The theorem is proved."
        if not self._message:
            return _shown(self._goals)
        return f"{_shown(self._goals)}\nError: {_shown(self._message)}"

    def get_state(self) -> dict[str, Any]:
        """Return the theorem's name, the accepted tactics, what is shown, and the count."""
        return {
            "theorem": self._theorem_name,
            "script": list(self._script),
            "goals": self._goals,
            "message": self._message,
            "num_actions": self._num_actions,
            "proved": self._proved,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned; the prover follows at the next step.

        Raises:
            ValueError: if the library has no such theorem.
        """
        if state["theorem"]:
            self._named(state["theorem"])
        self._theorem_name, self._script = state["theorem"], tuple(state["script"])
        self._goals, self._message = state["goals"], state["message"]
        self._num_actions, self._proved = state["num_actions"], state["proved"]

    def anchor_key(self) -> str:
        """Return a key of the theorem and what is left of it."""
        return hash_without(self.get_state(), "num_actions", "script", "message")

    def start_key(self) -> str:
        """Return a key of the theorem: several seeds may pose the same."""
        return hash_without({"theorem": self._theorem_name})

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next tactic of the library's proof, without a thought.

        Raises:
            ValueError: if there is none, or the tactics so far are not the first of it.
        """
        known = self._theorem.script
        place = len(self._script)
        if known[:place] != self._script or place >= len(known):
            raise ValueError(
                f"the library has no proof of {self._theorem_name} that begins with the tactics so "
                "far: demonstrate without random turns (data.warm_start.random_turns: 0), and not "
                "at all where the library has no proofs (data.warm_start.iterations: 0)"
            )
        return "", (known[place],)

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of statements and proofs."""
        yield from self.instruction.splitlines(keepends=True)
        yield from ("  ============================\n", "1 goal\n", "No more goals.", "\nError: ")
        yield from frequent_pieces(
            "\n".join((theorem.statement, *theorem.script)) for theorem in self.library.theorems()
        )


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
