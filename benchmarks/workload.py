"""The fixed workload of the speed benchmarks: a dialogue whose lengths are known in advance.

Observations hold a fixed number of words, responses a fixed number of tokens (nothing ends one
early), so that every implementation reads and writes the same number of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ragen_pl.envs.base import TextEnv
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.embedded import EmbeddedModel, build_tokenizer, read_markers
from ragen_pl.models.kernels.attention import NAME as GROUPED_MATMUL
from ragen_pl.models.kernels.attention import choose_attention
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.prompts import Prompts, system_text
from ragen_pl.types import Completion, Generate, Request, Sampling, TrajectoryGroup

PROMPTS = Prompts(think=False, turn="{observation}")


class Clerk(TextEnv):
    """An environment that shows words, accepts any text and never ends; every answer earns 1.

    Args:
        words: Words per observation, one token each.
    """

    name, actions, max_actions = "clerk", None, 1 << 30
    instruction = "Answer the clerk."

    def __init__(self, words: int = 24) -> None:
        self.words = words

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.start, self.answers = seed or 0, 0
        return self.render_text(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.answers += 1
        return self.render_text(), 1.0, False, False, {"success": False}

    def render_text(self) -> str:
        rng = random.Random(1000 * self.start + self.answers)
        return "".join(f"word{rng.randrange(60):02d} " for _ in range(self.words))

    def get_state(self) -> dict[str, Any]:
        return {"start": self.start, "answers": self.answers}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.start, self.answers = state["start"], state["answers"]

    def vocabulary(self) -> Iterable[str]:
        return (f"word{index:02d} " for index in range(60))


@dataclass(frozen=True)
class Workload:
    """The size of a dialogue.

    Args:
        num_groups: Number of initial states.
        group_size: Trajectories per initial state.
        turns: Turns per trajectory.
        words: Words per observation.
        response: Tokens per response.
    """

    num_groups: int = 4
    group_size: int = 8
    turns: int = 5
    words: int = 24
    response: int = 16

    @property
    def trajectories(self) -> int:
        return self.num_groups * self.group_size

    @property
    def sampled(self) -> int:
        """Tokens sampled in a rollout."""
        return self.trajectories * self.turns * self.response

    @property
    def length(self) -> int:
        """Tokens of a trajectory, measured on one with a constant answer."""
        nothing = (0.0,) * self.response
        answer = Completion((100,) * self.response, nothing, nothing, stopped=False)
        language = RandomModel(8, 8, 1, 2, 1).build(pieces(), 0)
        alone = replace(self, num_groups=1, group_size=1)
        ((trajectory,),) = (
            group.trajectories for group in alone.play(language, lambda *_: [answer], 0)
        )
        return sum(len(turn.prompt_ids) + self.response for turn in trajectory.turns)

    @property
    def config(self) -> RolloutConfig:
        """The rollout's configuration, with room for a whole trajectory and its templates."""
        room = 256 + self.turns * (self.words + self.response + 16)
        return RolloutConfig(
            num_groups=self.num_groups,
            group_size=self.group_size,
            max_turns=self.turns,
            max_actions_per_turn=1,
            max_response_tokens=self.response,
            max_context=room,
        )

    def play(
        self, language: LanguageModel, generate: Generate, iteration: int
    ) -> list[TrajectoryGroup]:
        """Collect one rollout."""
        chat = Chat(PROMPTS, language.tokenizer, language.markers, 1)
        starts = [GroupSeed(place, place) for place in range(self.num_groups)]
        return collect(
            Clerk(self.words),
            starts,
            chat,
            generate,
            self.config,
            iteration=iteration,
            sampling=Sampling(1.0, self.response),
        )


@dataclass(frozen=True)
class RandomModel(EmbeddedModel):
    """A Llama with random weights.

    Args:
        vocabulary: Size of the vocabulary: the dialogue's tokens, filled up with made-up ones.
        attention: The attention function.
        dtype: Data type of the weights.
        device: Device on which the weights are drawn; drawing 7B on a CPU takes
            minutes.
    """

    vocabulary: int = 512
    init_std: float = 0.02
    attention: str = GROUPED_MATMUL
    dtype: str = "float32"
    device: str = "cpu"

    def build(self, pieces: Iterable[str], seed: int) -> LanguageModel:
        """Build tokenizer and model; made-up words are appended to the pieces."""
        tokenizer = self._tokenizer(pieces)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with torch.device(self.device):
                model = LlamaForCausalLM(self._config(len(tokenizer)))
            return LanguageModel(
                model.to(getattr(torch, self.dtype)), tokenizer, read_markers(tokenizer)
            )

    def architecture(self, pieces: Iterable[str]) -> LlamaConfig:
        return self._config(self.vocabulary)

    def _tokenizer(self, pieces: Iterable[str]) -> PreTrainedTokenizerFast:
        words = list(dict.fromkeys(pieces))
        short = self.vocabulary - len(build_tokenizer(words))
        if short < 0:
            raise ValueError(
                f"vocabulary is {self.vocabulary}; the dialogue alone has {self.vocabulary - short}"
            )
        return build_tokenizer([*words, *(f"made-up-{index} " for index in range(short))])

    def _config(self, vocabulary: int) -> LlamaConfig:
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads,
            initializer_range=self.init_std,
            max_position_embeddings=1 << 15,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        choose_attention(config, self.attention)
        return config


def pieces() -> list[str]:
    """List the pieces of text in the dialogue that are one token each."""
    env = Clerk()
    system = system_text(PROMPTS, env, 1).splitlines(keepends=True)
    return [*system, "<answer>", "</answer>", *env.vocabulary()]


MODELS = {
    "tiny": RandomModel(),
    "10m": RandomModel(384, 1024, 6, 6, 2, vocabulary=2048),
    "135m": RandomModel(576, 1536, 30, 9, 3, vocabulary=49152),
    "0.5b": RandomModel(896, 4864, 24, 14, 2, vocabulary=151_936),
    "1.5b": RandomModel(1536, 8960, 28, 12, 2, vocabulary=151_936),
    "3b": RandomModel(2048, 11_008, 36, 16, 2, vocabulary=151_936),
    "7b": RandomModel(3584, 18_944, 28, 28, 4, vocabulary=152_064),
}
"""The embedded model's shape, one between, SmolLM2-135M's, and Qwen2.5's with tied embeddings."""


class ReadAgain:
    """A ``Generate`` without an engine: ``model.generate`` on whole prefixes in every turn, as
    TRL's own loop over tool calls does.

    It records no log-probs, which saves time that the engine spends. The model's attention becomes
    PyTorch's, the default of a loaded model.

    Args:
        model: The causal language model.
        stop_id: The token that ends a completion; None for completions of full length.
    """

    def __init__(self, model: PreTrainedModel, stop_id: int | None = None) -> None:
        model.set_attn_implementation("sdpa")
        self.model, self.stop_id = model, stop_id
        self.tokens_processed = 0

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        ids, mask = _pad_left([request.prefix_ids for request in requests])
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=sampling.max_new_tokens,
            do_sample=True,
            temperature=sampling.temperature,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            eos_token_id=self.stop_id,
        )
        device = self.model.device
        out: Tensor = self.model.generate(  # type: ignore[operator]
            input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=config
        )
        drawn = out[:, ids.shape[1] :].tolist()
        self.tokens_processed += int(mask.sum()) + len(requests) * (out.shape[1] - ids.shape[1] - 1)
        return [self._completion(row) for row in drawn]

    def _completion(self, row: list[int]) -> Completion:
        """Return a row up to its first stop token; what follows is padding."""
        stop = self.stop_id
        if stop is not None and stop in row:
            row = row[: row.index(stop) + 1]
        nothing = (0.0,) * len(row)
        return Completion(tuple(row), nothing, nothing, stopped=row[-1] == stop)


def _pad_left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return ids and mask, (rows, longest)."""
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, width - len(row) :] = torch.tensor(row)
        mask[place, width - len(row) :] = 1
    return ids, mask
