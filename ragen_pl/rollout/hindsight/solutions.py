"""The solutions in all environments of a run, and the batches that imitate them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.hindsight.config import HindsightImitation
from ragen_pl.rollout.hindsight.memory import SolutionMemory
from ragen_pl.rollout.hindsight.writer import Solution, SolutionWriter, Unwritten
from ragen_pl.rollout.mixture import groups_by_env
from ragen_pl.types import HindsightBatch, TrajectoryGroup

_ENOUGH = 8
"""Ways to success of which none was written, after which something is wrong."""


class Solutions:
    """The solutions that a run finds in hindsight, in each of its environments.

    Args:
        config: Hindsight imitation.
        envs: The environments to train in, by name.
        rollout_in: The limits of a trajectory in each, by name.
        think: Whether the agent thinks before it answers.
        run_seed: Seed of the run.
    """

    def __init__(
        self,
        config: HindsightImitation,
        envs: Mapping[str, TextEnv],
        rollout_in: Mapping[str, RolloutConfig],
        *,
        think: bool,
        run_seed: int,
    ) -> None:
        self.config, self.envs, self.rollout_in, self.run_seed = config, envs, rollout_in, run_seed
        self.config_in = {
            name: config.fitted(each, rollout_in[name], think=think) if name else config
            for name, each in envs.items()
        }
        """The configuration by environment; in a mixture, without keys that cannot act there."""
        self.memory = SolutionMemory(config, run_seed)
        self._unwritten = Counter[str]()
        """How many ways could not be written down, by reason, until one could or it was told."""
        self._is_settled = False

    def account(self, *, with_rl: bool) -> str:
        """Return what a run with it learned by, in words that stand beside its scores.

        Args:
            with_rl: Whether RL changed the policy, too.
        """
        own = "imitation of its own solutions in hindsight, which no expert is asked for"
        told = f"RL and {own}" if with_rl else f"{own}, without RL's updates"
        named = [name for name, config in self.config_in.items() if config.symmetries]
        where = f" of {', '.join(named)}" if any(named) else " of the task"
        return (
            f"{told}; it uses the symmetries{where}, which are given knowledge" if named else told
        )

    def batches(
        self, groups: Sequence[TrajectoryGroup], chats: Mapping[str, Chat], iteration: int
    ) -> list[HindsightBatch]:
        """Remember an iteration's solutions and draw its batches; every rank must call it.

        Args:
            groups: All groups that this rank played, kept or not.
            chats: The chat protocols, by environment.
            iteration: The iteration that played them.

        Returns:
            This rank's share of each batch; no batches while no solution is known.
        """
        solutions, by_env = list[Solution](), groups_by_env(groups)
        for name, env in self.envs.items():
            config, own = self.config_in[name], by_env.get(name, [])
            writer = SolutionWriter(env, chats[name], self.rollout_in[name], config, self.run_seed)
            found = writer.found(own, iteration)
            solutions += (each for each in found if isinstance(each, Solution))
            self._unwritten.update(each.reason for each in found if isinstance(each, Unwritten))
        if not self._is_settled:  # equal on all ranks, which need not ask each other any more
            self._is_settled = any(gather_objects(bool(solutions)))
        return self.memory.batches(solutions, iteration)

    def warning(self) -> str | None:
        """Return, once in a run, that none of its ways to success could be written down, and why;
        every rank must call it."""
        if self._is_settled:
            return None
        unwritten = sum(gather_objects(self._unwritten), Counter[str]())
        if unwritten.total() < _ENOUGH:
            return None
        self._is_settled = True
        reasons = "; ".join(f"{why} ({count})" for why, count in unwritten.most_common(3))
        return (
            f"hindsight imitation has written down none of {unwritten.total()} ways to success, so "
            f"nothing is imitated: {reasons}. Mend hindsight_turn (check-env examines it), or set "
            "data.hindsight to null"
        )
