"""The embedded model: a tiny causal language model and its tokenizer, built offline.

Both are built from configuration alone, deterministically; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ragen_pl.models.base import LanguageModel, PolicyModel
from ragen_pl.models.kernels.attention import NAME as GROUPED_MATMUL
from ragen_pl.models.message_markers import ChatMarkers
from ragen_pl.models.seeded_init import seeded_init

PAD, SYSTEM, USER, ASSISTANT, END = (
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
SPECIAL = (PAD, SYSTEM, USER, ASSISTANT, END)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The markers as a template, for exported policies that are loaded elsewhere."""


@dataclass(frozen=True)
class EmbeddedModel(PolicyModel):
    """The embedded model's sizes: a Llama of about a million parameters by default.

    Args:
        hidden_size: Width of the hidden states.
        intermediate_size: Width of the feed-forward layers.
        num_layers: Number of layers.
        num_heads: Number of query heads; twice this number must divide ``hidden_size``.
        num_key_value_heads: Number of key-value heads, which the query heads share; must divide
            ``num_heads``.
        init_std: Standard deviation of the initial weights.
        weights: Policy folder of an earlier run (such as ``runs/sokoban/policy/last``) whose
            weights replace the random ones; its sizes and vocabulary must equal this model's.
    """

    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 2
    num_heads: int = 6
    num_key_value_heads: int = 2
    init_std: float = 0.05
    weights: str | None = None

    def __post_init__(self) -> None:
        if min(self.hidden_size, self.intermediate_size, self.num_layers, self.num_heads) < 1:
            raise ValueError(f"model sizes must be at least 1: {self}")
        if not 0 <= self.init_std <= 1:
            raise ValueError(f"policy.init_std is {self.init_std}; it must be in [0, 1]")
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"policy.hidden_size is {self.hidden_size} and policy.num_heads {self.num_heads}: "
                "the width must be an even multiple of the number of heads"
            )
        if self.num_key_value_heads < 1 or self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"policy.num_key_value_heads is {self.num_key_value_heads}; it must divide "
                f"policy.num_heads ({self.num_heads})"
            )

    @property
    def origin(self) -> str:
        """The folder of the weights; empty if they are random."""
        return self.weights or ""

    def build(self, pieces: Iterable[str], seed: int) -> LanguageModel:
        """Build tokenizer and model; equal arguments give equal weights.

        Args:
            pieces: Texts that become one token each; other text is encoded as characters and bytes.
            seed: Seed of the initial weights.

        Raises:
            ValueError: when ``weights`` holds no policy, or one with another size or vocabulary.
        """
        tokenizer = build_tokenizer(pieces)
        config = self._llama_config(tokenizer)
        with seeded_init(seed):
            model = LlamaForCausalLM(config)
            with torch.no_grad():
                embedding = model.get_input_embeddings().weight
                assert isinstance(embedding, Tensor)
                spell_embeddings(embedding, tokenizer, self.init_std)
        if self.weights is not None:
            load_weights(model, tokenizer, Path(self.weights))
        return LanguageModel(model, tokenizer, read_markers(tokenizer))

    def build_without_weights(self, pieces: Iterable[str]) -> LanguageModel:
        """Build the tokenizer, and the model on the meta device."""
        tokenizer = build_tokenizer(pieces)
        with torch.device("meta"):  # in the default type, as in ``build``
            model = LlamaForCausalLM(self._llama_config(tokenizer))
        return LanguageModel(model, tokenizer, read_markers(tokenizer))

    def architecture(self, pieces: Iterable[str]) -> LlamaConfig:
        """Return the configuration of the model that ``build`` would build from these pieces."""
        return self._llama_config(build_tokenizer(pieces))

    def _llama_config(self, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads,
            initializer_range=self.init_std,
            tie_word_embeddings=True,
            attn_implementation=GROUPED_MATMUL,  # type: ignore[call-arg]
            bos_token_id=None,
            eos_token_id=token_id(tokenizer, END),
            pad_token_id=token_id(tokenizer, PAD),
        )


def load_weights(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Load the weights of an exported policy with the same vocabulary.

    Raises:
        ValueError: when the folder holds no policy, or its vocabulary or sizes differ.
    """
    vocabulary, file = folder / "tokenizer.json", folder / "model.safetensors"
    if not (vocabulary.is_file() and file.is_file()):
        raise ValueError(
            f"policy.weights is {folder}, which holds no exported policy: name a folder such as "
            "runs/sokoban/policy/last"
        )
    if Tokenizer.from_file(str(vocabulary)).get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"policy.weights is {folder}, whose vocabulary is not this run's: it was trained with "
            "other environments, prompts or numbers of actions"
        )
    loaded = load_file(file)
    there = {name: tuple(tensor.shape) for name, tensor in loaded.items()}
    here = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    if there != here:
        name, *_ = sorted(n for n in there | here if there.get(n) != here.get(n))
        raise ValueError(
            f"policy.weights is {folder}, a policy of other sizes: {name} is "
            f"{there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
        )
    model.load_state_dict(loaded, strict=False)  # tied weights are stored once


def build_tokenizer(pieces: Iterable[str]) -> PreTrainedTokenizerFast:
    """Build a lossless tokenizer in which every piece is one token.

    A unigram model with equal costs picks the segmentation with the fewest tokens; characters are
    those of the pieces and printable ASCII, everything else falls back to bytes.
    """
    unique = dict.fromkeys(piece for piece in pieces if piece)
    characters = dict.fromkeys([chr(code) for code in range(32, 127)] + ["\n"] + list("√"))
    characters.update(dict.fromkeys(char for piece in unique for char in piece))
    words = list(dict.fromkeys([*characters, *unique]))
    vocab = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -4.0) for byte in range(256))]
    vocab += [(word, -1.0) for word in words]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def is_embedded(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether a tokenizer is an embedded model's, exported ones included."""
    return bool(tokenizer.chat_template == CHAT_TEMPLATE)


def read_markers(tokenizer: PreTrainedTokenizerFast) -> ChatMarkers:
    """Return the chat markers of an embedded tokenizer."""
    system, user, assistant, end = (token_id(tokenizer, mark) for mark in SPECIAL[1:])
    return ChatMarkers(
        system=(system,), first_user=(end, user), user=(user,), assistant=(end, assistant), end=end
    )


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of a token in the vocabulary."""
    index = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(index, int), token
    return index


def spell_embeddings(weight: Tensor, tokenizer: PreTrainedTokenizerFast, std: float) -> None:
    """Initialize the embedding of a piece from its characters: the sum of one random vector per
    character and index, scaled to ``std``.

    A row of a board is one token; with these embeddings its cells can be decoded linearly from the
    start, and rows that no demonstration contains have a useful embedding.
    """
    letters: dict[tuple[str, int], Tensor] = {}
    for word, index in sorted(tokenizer.get_vocab().items()):
        if len(word) < 2 or word in SPECIAL or word.startswith("<0x"):
            continue
        parts = []
        for index_in_word, character in enumerate(word):
            key = (character, index_in_word)
            if key not in letters:
                letters[key] = torch.randn(weight.shape[1])
            parts.append(letters[key])
        weight[index] = torch.stack(parts).sum(0) * (std / len(parts) ** 0.5)
