"""Embeddings over OpenAI's API: unit vectors in order, bounded requests, and nothing of a wrong answer (L28)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.errors import ProviderAnswerInvalid, ProviderFault, ProviderRefused, ProviderUnavailable
from memory.providers import remote_embedder
from memory.providers.remote_embedder import BATCH_CHARS, BATCH_TEXTS, OpenAiEmbedder
from tests.support.graph_llm import DIMENSION, GraphLLM, vector

MODEL = "text-embedding-3-small"


@pytest.fixture
async def server() -> AsyncIterator[GraphLLM]:
    async with GraphLLM() as running:
        yield running


@pytest.fixture
async def embedder(server: GraphLLM) -> AsyncIterator[OpenAiEmbedder]:
    opened = OpenAiEmbedder(MODEL, api_key=None, base_url=server.url)
    yield opened
    await opened.aclose()


async def test_gives_unit_vectors_of_float32_in_the_order_of_the_texts(embedder: OpenAiEmbedder) -> None:
    texts = ["User lives in Leeds", "order 4471", "User lives in Leeds"]
    vectors = await embedder.embed(texts)
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, DIMENSION) == (3, embedder.dimension)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert np.allclose(vectors, [vector(text, DIMENSION) for text in texts], atol=1e-6)


async def test_sends_a_text_that_comes_twice_once(embedder: OpenAiEmbedder, server: GraphLLM) -> None:
    await embedder.embed(["a", "b", "a", "a"])
    assert server.stats.texts == 2
    assert embedder.calls == 1


async def test_sends_no_more_at_once_than_a_request_holds(embedder: OpenAiEmbedder, server: GraphLLM) -> None:
    vectors = await embedder.embed([f"text {number}" for number in range(2 * BATCH_TEXTS + 1)])
    assert len(vectors) == 2 * BATCH_TEXTS + 1
    assert server.stats.calls["embeddings"] == 3


async def test_nothing_to_embed_takes_no_call(embedder: OpenAiEmbedder) -> None:
    assert (await embedder.embed([])).shape == (0, 0)
    assert embedder.calls == 0


async def test_takes_blank_huge_and_broken_texts(embedder: OpenAiEmbedder) -> None:
    vectors = await embedder.embed(["", "   ", "x" * 1_000_000, "\ud83d lone"])
    assert vectors.shape == (4, DIMENSION)


@pytest.mark.case("L28")
@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        ("wrong-length", ProviderAnswerInvalid),
        ("wrong-count", ProviderAnswerInvalid),
        ("429", ProviderUnavailable),
        ("500", ProviderUnavailable),
        ("401", ProviderRefused),
        ("404", ProviderRefused),
    ],
)
async def test_L28_a_wrong_answer_is_rejected_and_a_refusal_is_no_retry_storm(
    embedder: OpenAiEmbedder, server: GraphLLM, trouble: str, kind: type[ProviderFault]
) -> None:
    await embedder.embed(["first"])
    server.trouble("embeddings", trouble)
    with pytest.raises(kind) as caught:
        await embedder.embed(["my secret", "other"])
    assert "secret" not in str(caught.value)
    assert server.stats.calls["embeddings"] == 2
    assert embedder.dimension == DIMENSION
    assert (await embedder.embed(["my secret"])).shape == (1, DIMENSION)


@pytest.mark.case("L28")
async def test_L28_hands_on_when_to_come_back(embedder: OpenAiEmbedder, server: GraphLLM) -> None:
    server.trouble("embeddings", "429")
    with pytest.raises(ProviderUnavailable) as caught:
        await embedder.embed(["a"])
    assert caught.value.retry_after_s == 20.0


async def test_a_model_whose_dimension_is_known_must_have_it(server: GraphLLM) -> None:
    wrong = OpenAiEmbedder(MODEL, api_key=None, base_url=server.url, dimension=1_536)
    assert wrong.dimension == 1_536
    with pytest.raises(ProviderAnswerInvalid, match="reindex"):
        await wrong.embed(["a"])
    await wrong.aclose()
    assert OpenAiEmbedder(MODEL, api_key="k").dimension == 1_536


@given(st.lists(st.text(max_size=30), max_size=600))
def test_batches_keep_order_and_bounds(texts: list[str]) -> None:
    batches = remote_embedder._batches(texts)
    assert [text for batch in batches for text in batch] == texts
    assert all(0 < len(batch) <= BATCH_TEXTS for batch in batches)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= BATCH_CHARS for batch in batches)
