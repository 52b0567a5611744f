"""One game of ``play``: an episode in the agent's chat protocol, turn by turn."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

from ragen_pl.cli.play.starts import Start
from ragen_pl.envs.boundary import EnvError
from ragen_pl.rollout.actors import ExpertActor, Move
from ragen_pl.rollout.baselines import play_baseline
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode
from ragen_pl.types import Completion, EpisodeId, Request, Turn


class Game:
    """An episode that is shown while it is played.

    Args:
        start: The initial state.
        chat: The chat protocol.
        rollout: The budgets and reward terms of a trajectory.
        attempt: Number of games from this start before; each has noise of its own.
    """

    def __init__(self, start: Start, chat: Chat, rollout: RolloutConfig, attempt: int) -> None:
        self.start, self.chat, self.rollout = start, chat, rollout
        self.episode = ChatEpisode(
            copy.deepcopy(start.env),
            chat,
            rollout,
            seed=start.seed,
            episode_id=EpisodeId(start.iteration, start.group_id, attempt),
        )

    def next_request(self) -> Request | None:
        """Return the request for the next turn's response; None if the game has ended."""
        if self.episode.stop_reason is not None:
            return None
        (prompt,) = self.chat.encode_parts([self.episode.context.segments])
        return self.episode.request(prompt)

    def prompt(self) -> str:
        """Return the text that this turn adds to the context, with its special tokens."""
        return str(self.chat.tokenizer.decode(list(self.episode.context.prompt)))

    def receive(self, completion: Completion) -> Turn | None:
        """Play the turn; return it, or None if the environment failed."""
        before = len(self.episode.turns)
        self.episode.receive(completion)
        return self.episode.turns[-1] if len(self.episode.turns) > before else None

    def expert_move(self) -> Move | None:
        """Return the expert's next turn; None if the environment has no expert or it fails."""
        env = copy.deepcopy(self.episode.env)  # an expert that plans by trying changes the copy
        expert = ExpertActor()
        if not expert.can_play(env.env):
            return None
        try:
            return expert.act(env, random.Random(self.start.seed), self.episode.max_actions)
        except EnvError:
            return None

    def expert_length(self) -> int | None:
        """Return the number of actions in which the expert succeeds from this start; None if it
        does not, or there is none."""
        expert = ExpertActor()
        if not expert.can_play(self.start.env):
            return None
        group = play_baseline(self.start.env, self.start.seed, 0, self.rollout, expert)
        (trajectory,) = group.trajectories
        return num_actions(trajectory.turns) if trajectory.success else None


def num_actions(turns: Sequence[Turn]) -> int:
    """Return the number of executed actions."""
    return sum(len(turn.actions) for turn in turns)
