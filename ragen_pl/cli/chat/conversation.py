"""A dialogue with a policy, token in and token out."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.message_markers import Segments, encode_segments
from ragen_pl.types import EpisodeId, Generate, Request, Sampling


class ContextFullError(Exception):
    """The dialogue has no room for another message and a response."""


class Conversation:
    """A dialogue whose context only grows; sampled tokens are never encoded again.

    Args:
        language: The policy's model, tokenizer and markers.
        generate: Its sampler.
        max_context: Upper bound of the dialogue in tokens.
        system: The system message.
        opening: Text that begins each response in the policy's place, such as ``<think>``.
        number: Number of dialogues before; seeds the sampling noise.
    """

    def __init__(
        self,
        language: LanguageModel,
        generate: Generate,
        max_context: int,
        *,
        system: str = "",
        opening: str = "",
        number: int = 0,
    ) -> None:
        self.language, self._generate, self.max_context = language, generate, max_context
        self.system, self.opening, self.number = system, opening, number
        self.context: list[int] = []
        """All tokens so far."""
        self._ended = True
        self._sampled = 0

    def say(self, message: str, *, temperature: float, max_new_tokens: int) -> Iterator[int]:
        """Add a message and yield the tokens of the response, as they are sampled.

        The token that ends the response is the last one yielded, unless the limit or the context
        ends it first. A caller that stops early leaves a response that was cut off.

        Raises:
            ContextFullError: when there is no room for the message and one token.
        """
        markers = self.language.markers
        contexts: Segments
        if self.context:
            closing = () if self._ended else (markers.end,)
            contexts = (*closing, *markers.later(message), *self._forced)
        else:
            contexts = (*markers.first(self.system, message), *self._forced)
        (prompt,) = encode_segments(self.language.tokenizer, [contexts])
        if len(self.context) + len(prompt) >= self.max_context:
            raise ContextFullError
        self.context.extend(prompt)
        self._ended = False
        room = self.max_context - len(self.context)
        for _ in range(min(max_new_tokens, room)):
            yield (token := self._next_token(temperature))
            if token == markers.end:
                return

    @property
    def _forced(self) -> Segments:
        return (self.opening,) if self.opening else ()

    def _next_token(self, temperature: float) -> int:
        """Sample one token; the sampler's cache holds the context before it."""
        episode = EpisodeId(0, self.number, 0)
        request = Request(tuple(self.context), episode, self._sampled)
        (completion,) = self._generate([request], Sampling(temperature, 1))
        (token,) = completion.token_ids
        self._sampled += 1
        self.context.append(token)
        self._ended = token == self.language.markers.end
        return token


class TokenText:
    """The text of sampled tokens, piece by piece.

    Characters that are spread over several tokens come out when they are complete.

    Args:
        language: The tokenizer's owner.
        raw: Whether special tokens are shown.
    """

    def __init__(self, language: LanguageModel, *, raw: bool) -> None:
        self._language, self._raw = language, raw
        self._ids: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """Add a token; return the text that has become known."""
        if token == self._language.markers.end and not self._raw:
            return self.rest()
        self._ids.append(token)
        text = self._text()
        return "" if text.endswith("�") else self._new(text)

    def rest(self) -> str:
        """Return the text that is held back."""
        return self._new(self._text())

    def _text(self) -> str:
        return str(
            self._language.tokenizer.decode(
                self._ids, skip_special_tokens=not self._raw, clean_up_tokenization_spaces=False
            )
        )

    def _new(self, text: str) -> str:
        new, self._shown = text[len(self._shown) :], text
        return new
