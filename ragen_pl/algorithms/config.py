"""Configuration of the algorithm, as frozen dataclasses."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ragen_pl.algorithms.estimators import GAE, AdvantageEstimator, CriticConfig, Success
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.algorithms.policy_losses import Clip, PolicyLoss
from ragen_pl.ops.losses import Aggregation, KLEstimator, check_estimator


@dataclass(frozen=True)
class Control:
    """Control of a coefficient that keeps the measured KL or entropy near a target.

    Args:
        target: Target in nats per token.
        horizon: Number of updates, or of collections for a KL penalty in the rewards, in which the
            coefficient changes by 20 % at the largest error.
    """

    target: float
    horizon: float = 10.0

    def __post_init__(self) -> None:
        for key in ("target", "horizon"):
            if getattr(self, key) <= 0:
                raise ValueError(f"control.{key} is {getattr(self, key)}; it must be positive")


@dataclass(frozen=True)
class KLPenalty:
    """A penalty on the KL divergence from the policy that RL started from.

    Args:
        coef: Weight of the KL, in the loss or in rewards before they are scaled; with ``control``
            its initial value.
        estimator: Estimator of the KL from sampled tokens. k1 is unbiased, but its gradient in the
            loss is zero in expectation; k2 and k3 pull towards the reference. k3 is at most 10 per
            token.
        place: Whether the KL is a term of the loss or is subtracted from each token's reward.
        control: Control of the coefficient towards a target KL; null keeps it fixed.
    """

    coef: float = 0.001
    estimator: KLEstimator = "k3"
    place: Literal["loss", "reward"] = "loss"
    control: Control | None = None

    def __post_init__(self) -> None:
        if self.coef <= 0:
            raise ValueError(f"kl.coef is {self.coef}; it must be positive (kl: null for no term)")
        check_estimator(self.estimator)


@dataclass(frozen=True)
class EntropySmoothing:
    """A penalty on entropies outside of a band around those of the latest updates.

    The smoothing of EPO (2509.22576), for runs whose entropy swings or drifts. With M the mean
    entropy per token of the latest optimizer batches, over all ranks and all environments of a
    mixture, each token's distance from [``low`` · M, ``high`` · M] is taken off its entropy in the
    bonus. Its weight rises with the number k of updates as ``weight`` · (1 − exp(−k / ``ramp``)).
    From the paper are the band around the mean of earlier steps, the penalty on tokens outside of
    it and a weight that changes over the run. That the penalty is the distance (the authors' is a
    constant, without a gradient), the form of the weight, and the choice of the default numbers are
    this project's.

    Args:
        low: Lower end of the band, as a share of the mean.
        high: Upper end of the band, as a share of the mean.
        weight: Weight of the distance, relative to the entropy; with 1 a token above the band has
            no bonus any more, with more it has a penalty.
        window: Number of latest updates in the mean.
        ramp: Number of updates in which the weight rises to 63 %.
    """

    low: float = 0.8
    high: float = 1.2
    weight: float = 2.0
    window: int = 100
    ramp: float = 50.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(
                f"smoothing.low is {self.low} and smoothing.high is {self.high}; they are shares "
                "of the mean entropy with 0 ≤ low < high"
            )
        for key in ("weight", "window", "ramp"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(
                    f"smoothing.{key} is {getattr(self, key)}; it must be positive "
                    "(smoothing: null for none)"
                )


@dataclass(frozen=True)
class EntropyBonus:
    """A bonus on the entropy of the policy's distribution.

    Args:
        coef: Weight of the mean entropy in the loss; with ``control`` its initial value.
        control: Control of the coefficient towards a target entropy; null keeps it fixed.
        smoothing: A penalty on entropies far from those of earlier updates; null for none.
    """

    coef: float = 0.001
    control: Control | None = None
    smoothing: EntropySmoothing | None = None

    def __post_init__(self) -> None:
        if self.coef < 0:
            raise ValueError(f"entropy.coef is {self.coef}; it must not be negative")
        for key in ("control", "smoothing"):
            if getattr(self, key) is not None and self.coef == 0:
                raise ValueError(f"entropy.coef is 0; entropy.{key} needs a coefficient above 0")


@dataclass(frozen=True)
class ThoughtAdvantage:
    """Separate advantages for the tokens of thoughts and of answers.

    With R the reward terms, J those of them that judge the thought alone (``judges_thought``), and
    A(·) the estimator: answer tokens get A(R − J). A thought's tokens get A(R − J) + ``coef`` × W,
    where W is the sum of J in their own turn, whitened over all turns with a thought of all ranks'
    kept trajectories (``ops.thought_advantages``). Without it, every token gets A(R), so that an
    untrue thought also lowers the probability of a good answer. A critic then predicts the returns
    of R − J. Filters judge groups by R.

    Args:
        coef: Weight of the thought's own reward; the whitened advantages of an estimator such as
            GAE have a standard deviation of 1.
    """

    coef: float = 1.0

    def __post_init__(self) -> None:
        if not self.coef > 0:
            raise ValueError(
                f"thought_advantage.coef is {self.coef}; it must be positive "
                "(thought_advantage: null credits all rewards to all tokens)"
            )


@dataclass(frozen=True)
class EnvAlgorithm:
    """What differs in one environment of a mixture.

    Args:
        advantage: The advantage estimator there; null for the run's. With a critic it must be the
            run's critic, which is trained on the targets of the run's estimator everywhere.
        coef: Factor of the advantages there, and so of the weight in the policy loss.
        policy_loss: The policy loss there; null for the run's. A loss that chooses tokens does so
            among those of this environment.
        entropy_factor: Factor of ``entropy.coef`` there; 0 gives no bonus.
        kl_factor: Factor of ``kl.coef`` there; 0 has no penalty.
    """

    advantage: AdvantageEstimator | None = None
    coef: float = 1.0
    policy_loss: PolicyLoss | None = None
    entropy_factor: float = 1.0
    kl_factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.coef < math.inf:
            raise ValueError(f"per_env coef is {self.coef}; it must be positive and finite")
        for key in ("entropy_factor", "kl_factor"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ValueError(
                    f"per_env {key} is {getattr(self, key)}; it must be finite and not negative"
                )


@dataclass(frozen=True)
class Algorithm:
    """The terms of the loss; the defaults are StarPO-S with PPO (RAGEN §3, §4.3).

    Args:
        advantage: The advantage estimator (``ragen_pl.algorithms.estimators``).
        policy_loss: The policy loss (``ragen_pl.algorithms.policy_losses``).
        aggregation: How the policy's terms of the loss are averaged over tokens and trajectories.
        kl: A penalty on the KL from the policy that RL started from; null builds no reference.
        entropy: The entropy bonus.
        thought_advantage: Separate advantages for the tokens of thoughts and of answers; null
            credits all rewards to all tokens.
        tis_cap: Truncated importance sampling: each token's policy loss is multiplied by
            the ratio of its probability under the trainer's model to that under the engine, up to
            this cap (2 is usual). null applies no correction, which is right for the engine
            ``InProcess``.
        per_env: What differs in single environments of a mixture, by their names in ``data.envs``.
            The critic, the aggregation, and the control and smoothing of coefficients are the run's
            in all of them.
    """

    advantage: AdvantageEstimator = GAE()  # noqa: RUF009  frozen, so sharing it is safe
    policy_loss: PolicyLoss = Clip()  # noqa: RUF009
    aggregation: Aggregation = "token_mean"
    kl: KLPenalty | None = None
    entropy: EntropyBonus = EntropyBonus()
    thought_advantage: ThoughtAdvantage | None = None
    tis_cap: float | None = None
    per_env: Mapping[str, EnvAlgorithm] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, own in self.per_env.items():
            self._check_override(f"algorithm.per_env.{name}.advantage", own.advantage)
            self._check_factors(f"algorithm.per_env.{name}", own)
        if self.tis_cap is not None and self.tis_cap < 1:
            raise ValueError(
                f"algorithm.tis_cap is {self.tis_cap}; it must be at least 1 "
                "(2 is usual), or null for no correction"
            )
        used = (self.advantage, *(each.advantage for each in self.per_env.values()))
        if self.kl_in_reward and any(isinstance(each, Success) for each in used):
            raise ValueError(
                "kl.place is reward, but estimators.Success ignores rewards: set kl.place to "
                "loss, or kl to null"
            )

    def _check_override(self, key: str, own: AdvantageEstimator | None) -> None:
        if own is None or own.critic is None or own.critic == self.critic:
            return
        if self.critic is None:
            raise ValueError(
                f"{key} is {type(own).__name__}, which needs a critic, but algorithm.advantage is "
                f"{type(self.advantage).__name__}, without one: choose an estimator with a critic "
                "for the run, and others where it is not wanted"
            )
        raise ValueError(
            f"{key} has a critic of its own, but a run has one for all environments: give it the "
            "same critic as algorithm.advantage"
        )

    def _check_factors(self, key: str, own: EnvAlgorithm) -> None:
        if own.kl_factor != 1 and self.kl is None:
            raise ValueError(
                f"{key}.kl_factor is {own.kl_factor}, but algorithm.kl is null, so that there is "
                "no KL term to weigh and no reference: set algorithm.kl, or the factor to 1"
            )
        if own.entropy_factor != 1 and self.entropy.coef == 0:
            raise ValueError(
                f"{key}.entropy_factor is {own.entropy_factor}, but algorithm.entropy.coef is 0, "
                "so that there is no bonus to weigh: set the coefficient, or the factor to 1"
            )

    def check_envs(self, names: Collection[str]) -> None:
        """Check that overrides name environments of the mixture.

        Args:
            names: The environments of the mixture; empty without one.

        Raises:
            ValueError: for any other name.
        """
        for name in self.per_env:
            if name not in names:
                known = f"data.envs has {', '.join(names)}" if names else "there is no data.envs"
                raise ValueError(f"algorithm.per_env names {name!r}, but {known}")

    def check_groups(self, group_size: int) -> None:
        """Check that groups are large enough for the estimator.

        Raises:
            ValueError: for groups of one with an estimator that compares members of a group.
        """
        comparing = self.comparing_members
        if comparing is not None and group_size == 1:
            raise ValueError(
                f"rollout.group_size is 1, but {comparing} compares a "
                "trajectory with the others of its group and would learn nothing: set "
                "rollout.group_size to 2 or more, or choose GAE or ReinforcePlusPlus"
            )

    def check_memory(self, *, cuts: bool) -> None:
        """Check that the policy losses see what they need of a trajectory.

        Args:
            cuts: Whether the memory may cut a trajectory into several training sequences.

        Raises:
            ValueError: for a loss that needs whole trajectories.
        """
        for place, _, policy_loss in self._policy_losses():
            if cuts and policy_loss.needs_whole_trajectories:
                raise ValueError(
                    f"algorithm.{place}policy_loss is {type(policy_loss).__name__}, whose ratio is "
                    "that of a whole trajectory, but data.rollout.memory cuts trajectories into "
                    "several training sequences: choose another policy_loss, such as Clip, or set "
                    "data.rollout.memory to Full"
                )

    def check_updates(self, *, single: bool) -> None:
        """Check that later updates of a rollout are corrected for the policy having changed.

        Args:
            single: Whether a rollout makes a single update.

        Raises:
            ValueError: for a loss without a ratio, unless it imitates successful trajectories,
                which any policy may.
        """
        if single:
            return
        for place, advantage, policy_loss in self._policy_losses():
            if not (policy_loss.corrects_later_updates or isinstance(advantage, Success)):
                raise ValueError(
                    f"algorithm.{place}policy_loss is {type(policy_loss).__name__}, which is right "
                    "for the first update of a rollout only, but data.rollout.online_k times "
                    "ppo_epochs is more than 1: set both to 1, or choose a loss with a ratio, such "
                    "as Clip"
                )

    def _policy_losses(self) -> Iterator[tuple[str, AdvantageEstimator, PolicyLoss]]:
        """Iterate over the places of a policy loss, the run's own and those of environments with
        one or with an advantage of their own: key, advantage and loss."""
        yield "", self.advantage, self.policy_loss
        for name, own in self.per_env.items():
            if own.policy_loss is not None or own.advantage is not None:
                advantage, loss = own.advantage or self.advantage, own.policy_loss
                yield f"per_env.{name}.", advantage, loss or self.policy_loss

    def check_thoughts(self, *, think: bool, judged: bool) -> None:
        """Check that there are rewards of thoughts to credit to their tokens.

        Args:
            think: Whether the agent thinks before it answers.
            judged: Whether a reward term judges thoughts.

        Raises:
            ValueError: for a ``thought_advantage`` that could never act.
        """
        if self.thought_advantage is None or (think and judged):
            return
        why = (
            "no term of rollout.rewards judges the thought (Truth and Grounding do)"
            if think
            else "prompts.think is false"
        )
        raise ValueError(
            f"algorithm.thought_advantage is set, but {why}: set algorithm.thought_advantage to "
            "null"
        )

    def check_without_rl(self) -> None:
        """Check that no network is built that hindsight imitation alone never uses.

        Raises:
            ValueError: for a critic or a KL term.
        """
        if self.critic is not None:
            raise ValueError(
                f"algorithm.advantage is {type(self.advantage).__name__}, but hindsight.alone "
                "leaves out RL, so that its critic would never be trained or asked: set "
                "algorithm.advantage to GRPO, which has none"
            )
        if self.kl is not None:
            raise ValueError(
                "algorithm.kl is set, but hindsight.alone leaves out the loss that it is part of: "
                "set algorithm.kl to null"
            )

    def check(self, optimization: Optimization) -> None:
        """Check that the importance sampling correction has an effect.

        Raises:
            ValueError: for a cap with sampled old log-probs, for which every ratio is 1.
        """
        if self.tis_cap is not None and optimization.old_log_probs == "sampled":
            raise ValueError(
                f"algorithm.tis_cap is {self.tis_cap}, but "
                "optimization.old_log_probs is sampled, so that every ratio is 1: set it to "
                "recomputed, or the cap to null"
            )

    def reuses_own_log_probs(self, optimization: Optimization, is_on_policy: bool) -> bool:
        """Return whether an update uses its own log-probs as the old ones.

        On-policy the two are equal, because the weights are those of the rollout. Only a KL penalty
        in the rewards needs the old ones before the update.
        """
        recomputed = optimization.old_log_probs == "recomputed"
        return recomputed and is_on_policy and not self.kl_in_reward

    @property
    def comparing_members(self) -> str | None:
        """Name of the first estimator that compares the members of a group; None without one."""
        own = [each.advantage for each in self.per_env.values() if each.advantage is not None]
        comparing = (each for each in (self.advantage, *own) if each.compares_members)
        return next((type(each).__name__ for each in comparing), None)

    @property
    def critic(self) -> CriticConfig | None:
        """The critic's configuration; None if the estimator has no critic."""
        return self.advantage.critic

    @property
    def values_from_policy(self) -> bool:
        """Whether values come from a head on the policy's hidden states."""
        return self.critic is not None and self.critic.backbone == "shared"

    @property
    def is_single_network(self) -> bool:
        """Whether the policy is the only network: no critic with a separate backbone and no
        reference."""
        return (self.critic is None or self.values_from_policy) and self.kl is None

    @property
    def kl_in_loss(self) -> bool:
        return self.kl is not None and self.kl.place == "loss"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl is not None and self.kl.place == "reward"
