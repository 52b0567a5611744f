"""``LiveReplay``, for episodes that live outside of the environment's own object."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ragen_pl.envs.replay import ReplayState


class LiveReplay(ReplayState):
    """A ``ReplayState`` whose episode is a server's, a virtual machine's or a native library's.

    A copy has no such episode: it is played again when the copy is first used. A subclass
    implements ``begin``, ``is_live`` and ``act``, and leaves what is alive out of its copies.
    """

    @property
    @abstractmethod
    def is_live(self) -> bool:
        """Whether the episode is there, at the place where the moves lead."""

    @abstractmethod
    def act(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Take an action in the living episode; return what ``play`` does."""

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Take an action, after those before it where the episode is not alive."""
        self.revive()
        return self.act(action)

    def revive(self) -> None:
        """Play the episode again if it is not alive.

        Raises:
            RuntimeError: if the same moves lead elsewhere.
        """
        if self.is_live:
            return
        shown = self.render_text()
        self.begin(self._seed, self._noise_seed)
        for move in self.moves:
            self.act(move)
        if shown and self.render_text() != shown:  # nothing is shown before the first reset
            raise RuntimeError(
                f"{type(self).__name__} shows {self.render_text()!r:.80} where it showed "
                f"{shown!r:.80}: its episodes do not follow from seed and actions, and this one "
                "was lost"
            )
