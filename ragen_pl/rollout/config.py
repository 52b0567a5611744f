"""The configuration of a rollout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from ragen_pl.rollout.memory import Full, Memory
from ragen_pl.rollout.rewards import Format, RewardTerm, check_names

MAX_GROUPS = 1 << 26
"""Groups that all iterations of a run collect at most: the seeds that its stream has for them."""
MAX_GROUP_SIZE = 4096
"""Largest ``group_size``: a trajectory's id is its group's id times this, plus its member."""


def _default_rewards() -> dict[str, RewardTerm | None]:
    return {"format": Format()}


@dataclass(frozen=True)
class RolloutConfig:
    """The size of a rollout, the budgets of its trajectories and their reward terms.

    Args:
        num_groups: Initial states per optimizer batch (the paper's P).
        group_size: Trajectories per initial state (N).
        online_k: Optimizer batches per rollout; 1 keeps every update on-policy.
        scale_updates: Whether a filtered rollout makes fewer optimizer batches than online_k, in
            proportion to the share of trajectories kept, and at least one. false keeps online_k
            batches of fewer trajectories, so that filtered and unfiltered runs take equally many
            steps.
        ppo_epochs: Passes over each rollout (PPO epochs).
        max_turns: Maximum turns per trajectory (K).
        max_actions_per_turn: Maximum actions in one response.
        max_response_tokens: Maximum tokens of one response.
        max_context: Maximum tokens that the agent reads and writes in one context: of a whole
            trajectory, unless the memory cuts it.
        memory: How much of the past the agent sees (``ragen_pl.rollout.memory``): Full, Window,
            State or Compact.
        temperature: Sampling temperature. There is no top-p or top-k: they would bias the
            importance ratio.
        rewards: Terms of each turn's reward beside the environment's
            (``ragen_pl.rollout.rewards``), by the name under which they are logged. Configurations
            are merged by name, and null leaves a term out.
        env_threads: Threads that step environments in parallel, one copy for each trajectory. 1
            suits environments that compute in Python; more threads suit environments that wait for
            a browser, a sandbox or a server.
        env_workers: Processes that environments live in, on each rank; 0 plays them in the run's
            own. They survive an environment that hangs or ends its process, which costs only the
            trajectory that did.
        step_timeout_s: Seconds that one call of an environment may take, such as a step; its
            trajectory then ends as ENV_ERROR, and its worker is replaced. null for no limit. Needs
            env_workers.
    """

    num_groups: int = 8
    group_size: int = 16
    online_k: int = 1
    scale_updates: bool = False
    ppo_epochs: int = 1
    max_turns: int = 5
    max_actions_per_turn: int = 2
    max_response_tokens: int = 32
    max_context: int = 1024
    memory: Memory = Full()  # noqa: RUF009  frozen, so sharing it is safe
    temperature: float = 1.0
    rewards: dict[str, RewardTerm | None] = field(default_factory=_default_rewards)
    env_threads: int = 1
    env_workers: int = 0
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for key in (
            "num_groups",
            "group_size",
            "online_k",
            "ppo_epochs",
            "max_turns",
            "max_actions_per_turn",
            "max_response_tokens",
            "max_context",
            "env_threads",
        ):
            if getattr(self, key) < 1:
                raise ValueError(f"rollout.{key} is {getattr(self, key)}; it must be at least 1")
        if self.num_groups * self.online_k > MAX_GROUPS:
            raise ValueError(
                f"rollout.num_groups is {self.num_groups}; times rollout.online_k it must be at "
                f"most {MAX_GROUPS}, which is all that the iterations of a run can collect"
            )
        if self.group_size > MAX_GROUP_SIZE:
            raise ValueError(
                f"rollout.group_size is {self.group_size}; it must be at most {MAX_GROUP_SIZE}: "
                "collect more groups, or the same starts again in later iterations"
            )
        if self.scale_updates and self.online_k == 1:
            raise ValueError(
                "rollout.scale_updates is true, but rollout.online_k is 1: one update cannot "
                "become fewer; set online_k to 2 or more, or scale_updates to false"
            )
        if self.env_workers < 0:
            raise ValueError(
                f"rollout.env_workers is {self.env_workers}; it must be 0 (none) or more"
            )
        if self.step_timeout_s is not None:
            if not 0 < self.step_timeout_s < math.inf:
                raise ValueError(
                    f"rollout.step_timeout_s is {self.step_timeout_s}; it must be a number of "
                    "seconds above 0, or null for no limit"
                )
            if not self.env_workers:
                raise ValueError(
                    f"rollout.step_timeout_s is {self.step_timeout_s:g}, but rollout.env_workers "
                    "is 0: only another process can be ended while it hangs; set "
                    "rollout.env_workers to 1 or more"
                )
        if self.temperature <= 0:
            raise ValueError(
                f"rollout.temperature is {self.temperature}; training samples at a temperature "
                "above 0 (1.0 is usual)"
            )
        self.memory.check(self.max_context, self.max_response_tokens)
        check_names(self.rewards)

    @property
    def threads(self) -> int:
        """Threads that step environments, enough to keep every worker busy."""
        return max(self.env_threads, self.env_workers)

    @property
    def is_on_policy(self) -> bool:
        """Whether each rollout makes a single update, of the weights that collected it."""
        return self.online_k * self.ppo_epochs == 1

    @property
    def fewest_updates(self) -> int:
        """Optimizer steps that a rollout makes at least, if it is neither lost nor discarded."""
        return self.ppo_epochs * (1 if self.scale_updates else self.online_k)

    @property
    def may_update_once(self) -> bool:
        """Whether a rollout makes a single update, or may do so if a filter keeps little of it."""
        return self.ppo_epochs == 1 and (self.online_k == 1 or self.scale_updates)

    @property
    def reward_terms(self) -> Mapping[str, RewardTerm]:
        """The terms of ``rewards`` that are not left out."""
        return {name: term for name, term in self.rewards.items() if term is not None}


@dataclass(frozen=True)
class TrajectoryLimits:
    """Limits of a trajectory that are tighter than the run's; null leaves one as it is.

    Args:
        max_turns: Turns per trajectory, at most ``rollout.max_turns``.
        max_actions_per_turn: Actions in one response, at most ``rollout.max_actions_per_turn``.
    """

    max_turns: int | None = None
    max_actions_per_turn: int | None = None

    def narrow(self, rollout: RolloutConfig, key: str) -> RolloutConfig:
        """Return a rollout with these limits.

        Args:
            rollout: The run's.
            key: The limits' place in the configuration, for the error.

        Raises:
            ValueError: when a limit is below 1 or above the run's.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None}
        for name, value in given.items():
            most = getattr(rollout, name)
            if not 1 <= value <= most:
                raise ValueError(
                    f"{key}.{name} is {value}; it must lie between 1 and rollout.{name}, which is "
                    f"{most} and holds for all environments"
                )
        return replace(rollout, **given)
