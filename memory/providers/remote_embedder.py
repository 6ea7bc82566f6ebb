"""The embeddings of the knowledge graph, over OpenAI's API or a compatible server's.

Above: wiring. Below: ports (the ``Embedder`` contract), errors, limits. ``openai`` is imported with the first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memory.errors import ProviderAnswerInvalid
from memory.limits import EMBED_REMOTE_TIMEOUT_S
from memory.providers.language import NO_KEY, open_client
from memory.providers.remote_faults import provider_fault

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from openai import AsyncOpenAI

BATCH_TEXTS = 256  # of one request; OpenAI takes 2,048, many compatible servers far fewer
BATCH_CHARS = 100_000  # of one request's texts together
TEXT_CHARS_MAX = 8_000  # of one text: OpenAI's bound is 8,191 tokens, and a token has a character at least
DIMENSION_MAX = 8_192
_SHORT_ALLOWED = 1e-6  # a shorter vector points nowhere

# What OpenAI's models give; another model's dimension is what its first answer has.
_DIMENSIONS = {"text-embedding-3-small": 1_536, "text-embedding-3-large": 3_072, "text-embedding-ada-002": 1_536}


class OpenAiEmbedder:
    """The ``Embedder`` of ports.py by ``/embeddings``. Never repeats a call. Belongs to one event loop.

    ``dimension``: what every vector must have; ``None``: as the model is known to give, else as its first answer has
    (0 until then).
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str | None = None,
        dimension: int | None = None,
        timeout_s: float = EMBED_REMOTE_TIMEOUT_S,
    ) -> None:
        self._model = model
        self._api_key = api_key or NO_KEY
        self._base_url = base_url
        self._dimension = dimension or (_DIMENSIONS.get(model, 0) if base_url is None else 0)
        self._timeout_s = timeout_s
        self._client: AsyncOpenAI | None = None
        self.calls = 0
        self.input_tokens = 0

    @property
    def model(self) -> str:
        return self._model

    @property
    def dimension(self) -> int:
        return self._dimension

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of unit length, float32, shape (len(texts), dimension). A text that comes twice is sent once.

        Raises:
            ProviderUnavailable: away, overloaded or limited.
            ProviderRefused: key, model or account.
            ProviderAnswerInvalid: vectors of a wrong number or length, or of no length; none of them is returned.
        """
        heads = [_sendable(text) for text in texts]
        unique = list(dict.fromkeys(heads))
        found = [vector for batch in _batches(unique) for vector in await self._request(batch)]
        places = {text: place for place, text in enumerate(unique)}
        if not found:
            return np.zeros((0, self._dimension), np.float32)
        return np.stack(found)[[places[head] for head in heads]]

    async def aclose(self) -> None:
        """Close the connections. Idempotent; the next call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _request(self, batch: list[str]) -> NDArray[np.float32]:
        if self._client is None:
            client = await asyncio.to_thread(open_client, self._api_key, self._base_url, self._timeout_s)
            self._client = self._client or client
        self.calls += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                answer: Any = await self._client.embeddings.create(
                    model=self._model, input=batch, encoding_format="float"
                )
            self.input_tokens += getattr(answer.usage, "total_tokens", 0) or 0
            rows = [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
        except Exception as error:
            raise provider_fault(error, "The embeddings endpoint") from None
        return self._checked(rows, len(batch))

    def _checked(self, rows: list[Any], expected: int) -> NDArray[np.float32]:
        if len(rows) != expected:
            raise ProviderAnswerInvalid(f"The embeddings endpoint gave {len(rows)} vectors for {expected} texts.")
        lengths = {len(row) if isinstance(row, list) else 0 for row in rows}
        dimension = self._dimension or min(lengths)
        if lengths != {dimension} or not 0 < dimension <= DIMENSION_MAX:
            raise ProviderAnswerInvalid(
                f"The embeddings endpoint gave vectors of {sorted(lengths)} numbers, not of {dimension}. If "
                "GRAPHITI_EMBEDDING_MODEL was changed, run: python -m memory reindex"
            )
        try:
            vectors = np.asarray(rows, np.float32)
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        except (ValueError, TypeError):
            raise ProviderAnswerInvalid("The embeddings endpoint gave vectors that aren't numbers.") from None
        if not np.isfinite(norms).all() or (norms < _SHORT_ALLOWED).any():
            raise ProviderAnswerInvalid("The embeddings endpoint gave vectors without direction.")
        self._dimension = dimension
        unit: NDArray[np.float32] = (vectors / norms).astype(np.float32)
        return unit


def _sendable(text: str) -> str:
    """What an endpoint takes: not blank, not too long, no lone surrogates."""
    return text[:TEXT_CHARS_MAX].encode(errors="replace").decode() if text.strip() else "."


def _batches(texts: list[str]) -> list[list[str]]:
    """In order, each within both bounds; a text alone may be as long as it is."""
    batches: list[list[str]] = []
    chars = 0
    for text in texts:
        if not batches or len(batches[-1]) >= BATCH_TEXTS or chars + len(text) > BATCH_CHARS:
            batches.append([])
            chars = 0
        batches[-1].append(text)
        chars += len(text)
    return batches
