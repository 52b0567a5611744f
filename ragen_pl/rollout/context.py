"""What the agent reads before its next message: the exchanges that its memory keeps, as tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import calling
from ragen_pl.models.message_markers import Segments
from ragen_pl.rollout.chat import Chat, Exchange
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.memory import Memory, written_summary
from ragen_pl.rollout.responses import SEPARATOR
from ragen_pl.rollout.spelled_words import told_of_spelled_words
from ragen_pl.types import Completion, Summary


class Context:
    """The dialogue of one episode as its agent sees it, sequence by sequence.

    Before each message of the agent, ``segments`` are encoded and given to ``begin_message``. The
    message then goes to ``add_response``, or to ``add_summary`` where ``asks_for_summary``.

    Args:
        chat: The chat protocol.
        env: The environment, whose tools the template may show.
        config: The budgets, and the memory.
        system: The system message.
        text: The text of the first turn.
    """

    def __init__(
        self, chat: Chat, env: TextEnv, config: RolloutConfig, *, system: str, text: str
    ) -> None:
        self.chat, self.env, self.config, self.system = chat, env, config, system
        with calling("tools"):
            self.segments: Segments = chat.first_context(env, text)
            """What follows the tokens so far, up to the agent's next message; not yet encoded."""
        self.tokens: list[int] = []
        """The current training sequence, up to the agent's next message."""
        self.prompt: tuple[int, ...] = ()
        """The end of ``tokens`` that no earlier message of the agent has read."""
        self.asks_for_summary = False
        """Whether the agent's next message is a summary."""
        self.begins_sequence = False
        """Whether its next turn begins a training sequence; False before the episode's first."""
        self.summary: Summary | None = None
        """The summary that this sequence begins with, until its first turn is over."""
        self.num_summaries = 0
        self._text = text
        self._exchanges: list[Exchange] = []
        self._summary_room = self._room_for_summary()

    @property
    def memory(self) -> Memory:
        """What stays in the context."""
        return self.config.memory

    @property
    def limit(self) -> int:
        """Maximum tokens of a training sequence."""
        return self.memory.limit(self.config.max_context)

    def _room_for_summary(self) -> int:
        """Return the tokens that a request for a summary and the summary take at most."""
        request = self.memory.summary_request
        if request is None:
            return 0
        asked = self.chat.encode_parts(
            [self.chat.summary_context(request, stopped=stopped) for stopped in (True, False)]
        )
        return max(map(len, asked)) + self.config.max_response_tokens

    def begin_message(self, prompt: tuple[int, ...]) -> bool:
        """Append the encoded segments; return whether a message fits behind them.

        If the next turn would leave no room for a summary after it, the agent is asked for a
        summary in its place.
        """
        if self.begins_sequence:
            self.tokens.clear()
        self.prompt = prompt
        if not self._fits(len(self.tokens) + len(prompt)):
            if not self._can_summarize():
                return False
            self._ask_for_summary()
        self.tokens.extend(self.prompt)
        return True

    def _fits(self, tokens: int) -> bool:
        """Return whether a response, and a summary after it, fit behind this many tokens."""
        return self.limit - tokens - self._summary_room >= self.config.max_response_tokens

    def _can_summarize(self) -> bool:
        """Return whether the turn fits into a context that begins with a summary, however long."""
        request = self.memory.summary_request
        if request is None or not self.tokens:
            return False
        longest = Exchange(request, (), stopped=False, is_summary=True)
        context = self.chat.cut_context(self.env, self.system, [longest], self._text)
        (prompt,) = self.chat.encode_parts([context])
        return self._fits(len(prompt) + self.config.max_response_tokens)

    def _ask_for_summary(self) -> None:
        request = self.memory.summary_request
        assert request is not None
        context = self.chat.summary_context(request, stopped=self._exchanges[-1].stopped)
        (self.prompt,) = self.chat.encode_parts([context])
        self.asks_for_summary = True

    def why_nothing_fits(self, seed: int) -> str:
        """Return what to change when the first prompt of an episode leaves no room."""
        response, room = self.config.max_response_tokens, self._summary_room
        needed = len(self.prompt) + response + room
        key = "max_context" if self.limit == self.config.max_context else "memory.budget"
        summary = f" and a summary up to {room}" if room else ""
        spelled = told_of_spelled_words([self.prompt], self.chat.tokenizer)
        return (
            f"rollout.{key} is {self.limit}, but the first prompt of {self.env.name} (seed {seed}) "
            f"takes {len(self.prompt)} tokens and its answer up to {response}{summary}: set "
            f"rollout.{key} to {needed} or more" + (f"; {spelled}" if spelled else "")
        )

    def add_response(self, completion: Completion, *, called: bool) -> None:
        """Append the agent's response to a turn.

        Args:
            completion: The response.
            called: Whether it called tools, whose results the next turn's text has.
        """
        self.tokens.extend(completion.token_ids)
        tokens, stopped = completion.token_ids, completion.stopped
        self._exchanges.append(Exchange(self._text, tokens, stopped, called=called))
        self.summary, self.begins_sequence = None, False

    def add_turn(self, text: str) -> None:
        """Append the text of the next turn; the memory may cut the context before it."""
        self._text, last = text, self._exchanges[-1]
        kept = self.memory.kept(len(self._exchanges))
        if kept == len(self._exchanges):
            self.segments = self.chat.later_context(text, stopped=last.stopped, called=last.called)
            return
        self._begin_sequence(self._exchanges[len(self._exchanges) - kept :])

    def add_summary(self, completion: Completion, anchor_key: str) -> None:
        """Put the agent's summary in the place of all exchanges.

        Args:
            completion: The summary.
            anchor_key: The key of the state that it was written in.
        """
        request = self.memory.summary_request
        assert request is not None
        self.summary = Summary(
            prompt_ids=self.prompt,
            completion=completion,
            # Summaries are comparable to each other, but not to the turns in the same state.
            anchor_key=f"summary: {anchor_key}",
            request=request,
            text=self.chat.decode(completion.token_ids),
        )
        self.num_summaries += 1
        self.asks_for_summary = False
        tokens, stopped = completion.token_ids, completion.stopped
        self._begin_sequence([Exchange(request, tokens, stopped, is_summary=True)])

    def _begin_sequence(self, exchanges: list[Exchange]) -> None:
        self._exchanges, self.begins_sequence = exchanges, True
        self.segments = self.chat.cut_context(self.env, self.system, exchanges, self._text)

    def summary_of(self, num_turns: int, actions: Sequence[str]) -> Completion:
        """Return a written summary: of the latest actions, as many as fit."""
        room = self.config.max_response_tokens - 1
        for first in range(max(0, len(actions) - room), len(actions) + 1):
            text = written_summary(num_turns, actions[first:], f" {SEPARATOR} ")
            (ids,) = self.chat.encode([text])
            if len(ids) <= room:
                break
        return Completion.written((*ids[:room], self.chat.markers.end))
