"""The configuration of hindsight imitation, and the environments in which its keys can act."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.config import RolloutConfig


@dataclass(frozen=True)
class HindsightImitation:
    """The imitation of the policy's own solutions beside RL, in optimizer steps of its own.

    Args:
        lr: Policy learning rate, with the schedule of RL's.
        updates: Optimizer steps of imitation after the RL updates of each iteration.
        batch_size: Responses' trajectories per step.
        memory: Solutions remembered; the oldest are forgotten first.
        fresh: Share of each batch that comes from this iteration's solutions, if there are any; the
            rest comes from the whole memory, hard ones preferred.
        rewrite: Whether the environment writes the thoughts, by ``hindsight_turn``, along the
            best way that the group found. false, and any environment that writes no thoughts,
            imitates the successful members with the highest return as they were sampled, except for
            turns that broke the format or whose thought was untrue. In a noisy environment this
            prefers ways that succeed often.
        variants: How many times a rewritten solution is written down, each with an opening and a
            symmetry of its own.
        opening: Maximum number of moves at the beginning of a rewritten solution that are played
            before its first turn, so that later states are seen in first turns, too.
        first_turn_only: Share of the variants that end after their first turn. Later thoughts only
            repeat the rest of the plan, so short variants teach more per token; whole ones show how
            turns follow each other.
        symmetries: Whether rewritten solutions are shown in random symmetries of the task, which is
            knowledge of the task: say so beside results.
        alone: Whether imitation is all that is learned: rollouts find solutions, and RL's own
            updates are left out, so that there may be no critic and no KL term. An iteration that
            found nothing to imitate updates nothing and is not validated.
    """

    lr: float = 3e-4
    updates: int = 4
    batch_size: int = 64
    memory: int = 2000
    fresh: float = 0.3
    rewrite: bool = True
    variants: int = 1
    opening: int = 0
    first_turn_only: float = 0.0
    symmetries: bool = False
    alone: bool = False

    def __post_init__(self) -> None:
        for key in ("updates", "batch_size", "memory", "variants"):
            if getattr(self, key) < 1:
                raise ValueError(
                    f"hindsight.{key} is {getattr(self, key)}; it must be at least 1 (hindsight: "
                    "null for no hindsight imitation)"
                )
        if not self.lr > 0:
            raise ValueError(f"hindsight.lr is {self.lr}; it must be positive")
        for key in ("fresh", "first_turn_only"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(
                    f"hindsight.{key} is {getattr(self, key)}; it is a share in [0, 1]"
                )
        if self.opening < 0:
            raise ValueError(f"hindsight.opening is {self.opening}; it must not be negative")

    def check(self, env: TextEnv, rollout: RolloutConfig, *, think: bool) -> None:
        """Refuse keys that could never act.

        Raises:
            ValueError: if ``variants``, ``opening``, ``first_turn_only`` or ``symmetries`` is set,
                but responses are imitated as they were sampled; or if ``symmetries`` is, but the
                environment has none; for several ``ppo_epochs`` of an RL that is left out; for
                rewritten solutions with a memory of summaries, which nobody could write.
        """
        if self.alone and rollout.ppo_epochs > 1:
            raise ValueError(
                f"rollout.ppo_epochs is {rollout.ppo_epochs}, but hindsight.alone leaves RL's "
                "updates out: set one of them back"
            )
        if rollout.memory.summary_request is not None and self.rewrites(env, think=think):
            raise ValueError(
                f"rollout.memory is {type(rollout.memory).__name__}, but a rewritten solution has "
                "no summaries to imitate: set hindsight.rewrite to false, or hindsight to null"
            )
        wanted = {
            "variants": self.variants > 1,
            "opening": self.opening > 0,
            "first_turn_only": self.first_turn_only > 0,
            "symmetries": self.symmetries,
        }
        key = next((key for key, is_set in wanted.items() if is_set), None)
        if key is not None and not self.rewrites(env, think=think):
            why = (
                f"{type(env).__name__} has no hindsight_turn"
                if self.rewrite
                else "hindsight.rewrite is false"
            )
            raise ValueError(
                f"hindsight.{key} is {getattr(self, key)}, but {why}, so that sampled responses "
                f"are imitated as they are: leave hindsight.{key} out"
            )
        if self.symmetries and type(env).symmetries is TextEnv.symmetries:
            raise ValueError(
                f"hindsight.symmetries is true, but {type(env).__name__} lists no symmetries: "
                "write TextEnv.symmetries, or set it to false"
            )

    def fitted(self, env: TextEnv, rollout: RolloutConfig, *, think: bool) -> HindsightImitation:
        """Return the keys for one environment of a mixture, without those that cannot act there:
        solutions are imitated as they were sampled where ``check`` refuses to rewrite them."""
        own = self
        if rollout.memory.summary_request is not None:
            own = replace(own, rewrite=False)
        if type(env).symmetries is TextEnv.symmetries:
            own = replace(own, symmetries=False)
        if not own.rewrites(env, think=think):
            own = replace(own, variants=1, opening=0, first_turn_only=0.0, symmetries=False)
        return own

    def rewrites(self, env: TextEnv, *, think: bool) -> bool:
        """Return whether responses are written anew; without thoughts, actions alone suffice."""
        has_thoughts = type(env).hindsight_turn is not TextEnv.hindsight_turn
        return self.rewrite and (has_thoughts or not think)
