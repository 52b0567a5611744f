"""Mutual information of thoughts and prompts: whether thoughts still depend on the state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.models.policy import evaluation_mode
from ragen_pl.ops.mutual_information import (
    Information,
    count_pairs,
    estimate_information,
    merge_duplicates,
)
from ragen_pl.rollout.engines.cross_scoring import cross_score
from ragen_pl.training.access import data_module, learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.starpo import StarPO
from ragen_pl.training.trainer import announce
from ragen_pl.types import Trajectory, TrajectoryGroup, trainable_trajectories

T = TypeVar("T")
Key = tuple[int, int, int]
"""Group, member and turn of a thought."""
ThoughtTurns = Mapping[tuple[int, int], Sequence[int]]
"""The turns with a readable thought, by group and member."""
Pairing = tuple[tuple[int, ...], tuple[int, ...]]
"""All tokens before a thought, and the tokens of the thought."""


class MutualInformation(RolloutCallback):
    """RAGEN-2's signs of template collapse: thoughts that no longer depend on the prompt.

    Every few iterations some thoughts are scored under each other's prompts, unfiltered, by the
    policy that sampled them. The prompt of a thought is everything before it, a forced opening tag
    included. ``first_turn`` compares the first thoughts of different groups;
    ``trajectory_uniform`` compares one thought each, at a random turn, of trajectories drawn from
    all. The metrics are the mutual information, its z-score, the conditional entropy and the
    retrieval accuracy above chance (``ragen_pl.ops.mutual_information``). Thoughts are chosen with
    a random stream of their own and the weights stay as they are, so this callback does not change
    a run. If the agent does not think, nothing is measured, and a printed line says so.

    Args:
        every_n_iterations: Iterations between two measurements.
        num_prompts: Number of groups whose first thoughts are compared, and of trajectories in the
            other comparison; fewer if the rollout has fewer.
        num_responses: First thoughts per group.
        normalization: ``sequence`` gives nats per thought, at most log P for P prompts; ``token``
            divides by each thought's length, as RAGEN-2 reports.
    """

    def __init__(
        self,
        every_n_iterations: int = 5,
        num_prompts: int = 32,
        num_responses: int = 2,
        normalization: Literal["sequence", "token"] = "sequence",
    ) -> None:
        super().__init__()
        for key, value, least in (
            ("every_n_iterations", every_n_iterations, 1),
            ("num_prompts", num_prompts, 2),
            ("num_responses", num_responses, 1),
        ):
            if value < least:
                raise ValueError(f"{key} is {value}; it must be at least {least}")
        self.every_n_iterations = every_n_iterations
        self.num_prompts = num_prompts
        self.num_responses = num_responses
        self.normalization = normalization

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Announce that nothing is measured if the agent does not think."""
        if stage == "fit" and not data_module(trainer).prompts.think:
            announce(trainer, "mutual information is not measured: data.prompts.think is false")

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Measure if the iteration is due; every rank takes part and gets the same numbers."""
        due = (self.iteration + 1) % self.every_n_iterations == 0
        if not due or not data_module(trainer).prompts.think:
            return
        thought_turns = _thought_turns(groups)
        seed = learner(module).seed
        chosen = {
            "first_turn": first_turns(
                thought_turns, self.num_prompts, self.num_responses, _generator(seed, self, 0)
            ),
            "trajectory_uniform": uniform_turns(
                thought_turns, self.num_prompts, _generator(seed, self, 1)
            ),
        }
        for variant, keys in chosen.items():
            information = self._measure(trainer, learner(module), _fetch(groups, keys))
            if information is not None:
                self.record(
                    {
                        f"diagnostics/mi_{variant}": information.mutual_information,
                        f"diagnostics/mi_z_{variant}": information.z_score,
                        f"diagnostics/conditional_entropy_{variant}": (
                            information.conditional_entropy
                        ),
                        f"diagnostics/retrieval_{variant}": information.retrieval_above_chance,
                    }
                )

    def _measure(
        self, trainer: Trainer, module: StarPO, pairings: Sequence[Pairing]
    ) -> Information | None:
        """Score every distinct thought under every distinct prompt; None with fewer than two."""
        prompts, prompt_of = merge_duplicates([prompt for prompt, _ in pairings])
        thoughts, thought_of = merge_duplicates([thought for _, thought in pairings])
        if len(prompts) < 2:
            return None
        model, rollout = module.language.model, data_module(trainer).rollout
        with (
            module.rollout_weights(rollout.max_context),
            evaluation_mode(model),
            trainer.precision_plugin.forward_context(),
        ):
            table = cross_score(
                model,
                prompts,
                thoughts,
                temperature=rollout.temperature,
                token_budget=module.optimization.tokens_per_micro_batch,
            )
        rows, own, counts = count_pairs(thought_of, prompt_of)
        lengths = torch.tensor([len(thought) for thought in thoughts])[rows]
        per_token = self.normalization == "token"
        return estimate_information(
            table[rows], own, counts=counts, lengths=lengths if per_token else None
        )


def first_turns(
    thought_turns: ThoughtTurns, num_prompts: int, num_responses: int, rng: np.random.Generator
) -> list[Key]:
    """Draw groups and, from each, the first thoughts of some members, all without replacement."""
    members: defaultdict[int, list[int]] = defaultdict(list)
    for group_id, member in sorted(thought_turns):
        if 0 in thought_turns[group_id, member]:
            members[group_id].append(member)
    return [
        (group_id, member, 0)
        for group_id in _sample(sorted(members), num_prompts, rng)
        for member in _sample(members[group_id], num_responses, rng)
    ]


def uniform_turns(
    thought_turns: ThoughtTurns, num_prompts: int, rng: np.random.Generator
) -> list[Key]:
    """Draw trajectories without replacement and, from each, one thought at a uniform turn."""
    places = sorted(place for place, turns in thought_turns.items() if turns)
    return [
        (group_id, member, int(rng.choice(thought_turns[group_id, member])))
        for group_id, member in _sample(places, num_prompts, rng)
    ]


def _sample(items: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    order = rng.permutation(len(items))[:count]
    return [items[place] for place in sorted(order)]


def _generator(seed: int, callback: MutualInformation, variant: int) -> np.random.Generator:
    key = np.random.SeedSequence((seed, callback.iteration, variant))
    return np.random.Generator(np.random.Philox(key))


def _thought_turns(groups: Sequence[TrajectoryGroup]) -> ThoughtTurns:
    """Gather the turns that have a thought from all ranks."""
    own = {
        (t.group_id, t.member): [k for k, turn in enumerate(t.turns) if turn.thought_tokens]
        for t in trainable_trajectories(groups)
    }
    return {place: turns for part in gather_objects(own) for place, turns in part.items()}


def _fetch(groups: Sequence[TrajectoryGroup], keys: Sequence[Key]) -> list[Pairing]:
    """Gather the chosen thoughts and their prompts from the ranks that hold them."""
    members = {(t.group_id, t.member): t for t in trainable_trajectories(groups)}
    own = {key: _pairing(members[key[:2]], key[2]) for key in keys if key[:2] in members}
    gathered = {key: pairing for part in gather_objects(own) for key, pairing in part.items()}
    return [gathered[key] for key in keys]


def _pairing(trajectory: Trajectory, turn: int) -> Pairing:
    this = trajectory.turns[turn]
    return trajectory.prefix_ids(turn), this.completion.token_ids[: this.thought_tokens]
