"""The fingerprint of a checkpoint's language model: tokenizer, chat template, number types."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel

_PROBE = "Reward: -0.1\n#_PX√O\t<think>Éa é 漢字🧊</think><answer>Up || Down</answer> 1234567890"
"""A text that tokenizers with equal vocabularies but different rules split differently."""


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """Fingerprints of a language model, saved in each of its checkpoints."""

    tokenizer: str
    """Hash of all tokens with their ids, and of how a text is split into them."""
    chat_template: str
    """Hash of the template."""
    dtype: str
    """Type of the policy's weights."""
    precision: str
    """``trainer.precision``."""

    @classmethod
    def of(cls, language: LanguageModel, precision: str) -> Self:
        """Take the fingerprints of a language model."""
        tokenizer = language.tokenizer
        split = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
        return cls(
            tokenizer=_hash([sorted(tokenizer.get_vocab().items()), list(split)]),
            chat_template=_hash(tokenizer.chat_template),
            dtype=str(language.model.dtype).removeprefix("torch."),
            precision=str(precision),
        )

    def plain(self) -> dict[str, str]:
        """Return the fingerprints as plain data."""
        return asdict(self)

    def changes_since(self, saved: dict[str, str], *, resumes_training: bool) -> list[str]:
        """Compare with the fingerprints in a checkpoint.

        Returns:
            One line per difference that is allowed.

        Raises:
            ConfigError: when the tokenizer is another one, or when training would be resumed under
                another chat template.
        """
        now = self.plain()
        changed = [name for name in now if name in saved and saved[name] != now[name]]
        if "tokenizer" in changed:
            raise ConfigError(
                "the tokenizer is not the one that the checkpoint was trained with, so that its "
                "token ids mean something else\n  restore the tokenizer's files beside the model, "
                "or start anew without --ckpt_path"
            )
        if "chat_template" in changed and resumes_training:
            raise ConfigError(
                "the chat template is not the one that the checkpoint was trained with, so that "
                "the policy would meet other prompts\n  restore the template among the model's "
                "files, or start anew without --ckpt_path"
            )
        lines = []
        for name in changed:
            if name == "chat_template":
                lines.append("the chat template: the policy was trained under another one")
            else:
                lines.append(f"{name}: {saved[name]} → {now[name]}, so results differ by rounding")
        return lines


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
