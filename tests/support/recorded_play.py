"""Record the expert's play, as ``predict`` would, for teachers that read files."""

from __future__ import annotations

import random
from pathlib import Path

from ragen_pl.envs.base import TextEnv
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.report.trajectory_record import Occasion, record_line, trajectory_record
from ragen_pl.rollout.actors import ExpertActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode, play_episode
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.types import EpisodeId
from tests.support.words import vocabulary


def embedded_chat(env: TextEnv, prompts: Prompts, max_actions: int) -> Chat:
    """Make the protocol of an embedded model that has the words of one environment."""
    tokenizer = build_tokenizer(vocabulary(prompts, env, max_actions))
    return Chat(prompts, tokenizer, read_markers(tokenizer), max_actions)


def record_expert(
    path: Path, env: TextEnv, rollout: RolloutConfig, prompts: Prompts, count: int = 8
) -> tuple[str, ...]:
    """Write the expert's episodes, one from each of the first seeds, and return the files."""
    protocol, lines = embedded_chat(env, prompts, rollout.max_actions_per_turn), []
    for seed in range(count):
        identity = EpisodeId(0, seed, 0)
        episode = ChatEpisode(env, protocol, rollout, seed=seed, episode_id=identity)
        play_episode(episode, ExpertActor(), random.Random(seed))
        occasion = Occasion("predict", 1, "strong")
        lines.append(record_line(trajectory_record(episode.trajectory(), protocol, occasion)))
    path.write_text("".join(lines))
    return (str(path),)
