"""``Offline``, recorded play as the teacher: this library's trajectories, or messages of others."""

from __future__ import annotations

from dataclasses import dataclass

from ragen_pl.rollout.teachers.recorded_play import RecordedPlay
from ragen_pl.rollout.teachers.recordings import RecordedExchange


@dataclass(frozen=True)
class Offline(RecordedPlay):
    """Play that was recorded in JSON lines, such as a stronger model's.

    A line is a trajectory as ``predict`` and every run write it (``docs/trajectories.md``), or
    ``messages``, or ``prompt`` and ``completion``, as TRL and verifiers have them. What the agent
    sees is written anew in this run's protocol from a trajectory, whose responses keep their tokens
    if they are this tokenizer's; messages are taken as they are.

    Imitated are the assistant's turns alone: of a trajectory those that followed the format without
    an untrue thought, of ``prompt`` and ``completion`` the completion's.

    Args:
        imitate_untrue: Whether responses are imitated whose thought the environment found untrue,
            such as thoughts in words that it cannot judge.
    """

    imitate_untrue: bool = False

    def is_imitated(self, turn: RecordedExchange) -> bool:
        return turn.is_imitated and (self.imitate_untrue or not turn.is_untrue)
