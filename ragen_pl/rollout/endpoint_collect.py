"""The collection of trajectories from a model behind an endpoint, each on its own thread."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import calling, warn
from ragen_pl.errors import ConfigError
from ragen_pl.models.endpoint import EndpointClient, EndpointError, EndpointReply, Message
from ragen_pl.rollout.chat import Dialogue
from ragen_pl.rollout.collect import GroupSeed, in_groups
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import DialogueEpisode, Response
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.types import (
    Completion,
    EpisodeId,
    FormatFault,
    Sampling,
    StopReason,
    Trajectory,
    TrajectoryGroup,
)


@dataclass(frozen=True, slots=True)
class _MessageExchange:
    """A message of the past and the answer to it."""

    text: str
    answer: Message
    call_id: str | None
    """The id of the call whose result the next message is; None if it is none."""


class MessageEpisode(DialogueEpisode):
    """An episode played in messages. Its turns have no tokens.

    A response may lack the opening tag, which some chat templates write themselves. The context's
    length is up to the endpoint. If it does not answer, the episode ends as ``ENDPOINT_ERROR``.

    With ``prompts.tools`` ``template``, requests have the tools and answers the calls, whose
    results are messages of their own. The first call of an answer is carried out, with a thought or
    without; further ones, and text beside it that is no thought, break the format.

    Args:
        env: The environment, which no other episode may use.
        dialogue: The wording of the prompts.
        config: The budgets of a trajectory.
        seed: Seed of the initial state.
        episode_id: The identity of the trajectory.
        client: The connection to the endpoint.
    """

    def __init__(
        self,
        env: TextEnv,
        dialogue: Dialogue,
        config: RolloutConfig,
        client: EndpointClient,
        *,
        seed: int,
        episode_id: EpisodeId,
    ) -> None:
        self._client = client
        self._exchanges: list[_MessageExchange] = []
        self._tools: Sequence[Mapping[str, Any]] = ()
        super().__init__(env, dialogue, config, seed=seed, episode_id=episode_id)

    def _begin(self) -> None:
        super()._begin()
        if self.dialogue.prompts.tools == "template":
            with calling("tools"):
                self._tools = self.env.env.tools
        self.message = self.write_next_turn()

    @property
    def messages(self) -> list[Message]:
        """The system message, what the memory keeps of earlier turns, and the current turn's."""
        said = [*(exchange.text for exchange in self._exchanges), self.message]
        call_ids = [None, *(exchange.call_id for exchange in self._exchanges)]
        messages: list[Message] = []
        if self._client.endpoint.system_role:
            messages.append({"role": "system", "content": self.system})
        else:
            said[0] = f"{self.system}\n{said[0]}"
        for text, call_id, exchange in zip_longest(said, call_ids, self._exchanges):
            if call_id is None:
                messages.append({"role": "user", "content": text})
            else:
                messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
            if exchange is not None:
                messages.append(exchange.answer)
        return messages

    def play_turn(self, sampling: Sampling) -> None:
        """Ask for one response and play it."""
        turn_id = (self.episode_id.iteration, self.seed, self.episode_id.member, len(self.turns))
        seed = int(np.random.SeedSequence(turn_id).generate_state(1)[0]) >> 1  # 31 bits
        try:
            reply = self._client.ask(
                self.messages, sampling.temperature, sampling.max_new_tokens, seed, self._tools
            )
        except EndpointError as error:
            self.stop_reason, self.error = StopReason.ENDPOINT_ERROR, str(error)
            place = {"seed": self.seed, "group": self.episode_id.group_id}
            record_fault(FaultKind.ENDPOINT, str(error), **place, member=self.episode_id.member)
            warn(("endpoint", "no answer"), f"{error}; trajectories that it ends are excluded")
            return
        with self.env_errors():
            self._play_turn(self._read(reply))
            self._exchanges.append(self._exchange(reply))
            if self.stop_reason is None:
                kept = self.config.memory.kept(len(self._exchanges))
                self._exchanges = self._exchanges[len(self._exchanges) - kept :]
                self.message = self.write_next_turn()

    def _exchange(self, reply: EndpointReply) -> _MessageExchange:
        answer: dict[str, Any] = {"role": "assistant", "content": reply.content}
        call = reply.calls[0] if reply.calls else None
        if call is not None and not call.has_object:
            answer["content"] += call.action
        elif call is not None:  # each call wants a result, so further ones are left out
            answer["tool_calls"] = [call.to_dict()]
            return _MessageExchange(self.message, answer, call.call_id)
        return _MessageExchange(self.message, answer, None)

    def _read(self, reply: EndpointReply) -> Response:
        tag = self.dialogue.opening_tag
        text = (reply.text if self.dialogue.prompts.think else reply.content).lstrip()
        whole = text if tag in text else tag + text
        call = reply.calls[0].action if reply.calls else ""
        parsed = self.dialogue.parse_whole(whole + call, self.env.actions)
        fault, actions = parsed.fault, parsed.actions
        if self._tools:
            is_one_call = len(reply.calls) == 1 and actions == (call,)
            if not is_one_call and fault is not FormatFault.NO_ANSWER:
                fault = FormatFault.BAD_CALL
            actions = (call,) if call else ()
        return Response(
            actions=actions,
            completion=Completion((), (), None, stopped=reply.stopped),
            text=whole.removeprefix(tag) + call,
            thought=parsed.thought,
            format_fault=fault if reply.stopped else FormatFault.CUT_OFF,
        )


def collect_from_endpoint(
    env: TextEnv,
    group_seeds: Sequence[GroupSeed],
    dialogue: Dialogue,
    client: EndpointClient,
    config: RolloutConfig,
    *,
    iteration: int,
    sampling: Sampling,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrajectoryGroup]:
    """Play ``group_size`` trajectories from each group's initial state, several at a time.

    Args:
        env: The environment, of which every trajectory has a copy.
        client: The connection to the endpoint, which says how many are played at a time.
        progress: Called with (finished, total) after every trajectory; it may raise to interrupt.

    Raises:
        ConfigError: when the endpoint refuses every request; for a memory that writes summaries.
    """
    if config.memory.summary_request is not None:
        raise ConfigError(
            f"data.rollout.memory is {type(config.memory).__name__}, but model.policy is Endpoint, "
            "whose tokens are not counted here, so that nothing says when to write a summary: "
            "choose Full, Window or State"
        )
    places = [(group, member) for group in group_seeds for member in range(config.group_size)]
    is_over = threading.Event()

    def play(place: tuple[GroupSeed, int]) -> Trajectory | None:
        group, member = place
        episode = MessageEpisode(
            copy.deepcopy(env),
            dialogue,
            config,
            client,
            seed=group.seed,
            episode_id=EpisodeId(iteration, group.group_id, member),
        )
        while episode.stop_reason is None and not is_over.is_set():
            episode.play_turn(sampling)
        return None if episode.stop_reason is None else episode.trajectory()

    pool = ThreadPoolExecutor(client.endpoint.concurrency, thread_name_prefix="endpoint")
    try:
        futures = [pool.submit(play, place) for place in places]
        for finished, future in enumerate(as_completed(futures), start=1):
            future.result()  # raises what the thread raised
            if progress is not None:
                progress(finished, len(futures))
    finally:
        is_over.set()
        pool.shutdown(cancel_futures=True)
    played = [trajectory for future in futures if (trajectory := future.result()) is not None]
    return in_groups(group_seeds, played)
