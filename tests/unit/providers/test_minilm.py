"""The embedder's graph: the package's numbers, computed in 8 bits; and the ONNX files it is read from and made as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from memory.errors import EmbedderUnavailable
from memory.providers import embedders
from memory.providers.embedders import LocalEmbedder, model_file, tokenizer_file
from memory.providers.minilm import IDS, SIGNED_SUM, sentence_model, signed_probe
from memory.providers.onnx_file import FLOAT, ModelWriter, NotReadable, read

TEXTS = (
    "what did I say about the garden gate",
    "My cat is called Biscuit.",
    "Se muda a Lyon el lunes, por el trabajo.",
    "I moved last year because of a new job at the hospital, and I still miss the sea and the boats. " * 6,
)


def _original(texts: tuple[str, ...]) -> NDArray[np.float32]:
    """What the package's own graph makes of ``texts``, one by one."""
    session = onnxruntime.InferenceSession(str(model_file()), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(tokenizer_file(None)))
    tokenizer.enable_truncation(256)
    tokenizer.no_padding()
    vectors = []
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        mean = session.run(None, inputs)[0].mean(axis=1)[0]
        vectors.append(mean / np.linalg.norm(mean))
    return np.array(vectors, np.float32)


def test_vectors_are_close_to_those_of_the_packages_own_graph() -> None:
    ours, theirs = LocalEmbedder().encode(TEXTS), _original(TEXTS)
    assert (ours * theirs).sum(axis=1).min() > 0.985
    assert np.abs(ours @ ours.T - theirs @ theirs.T).max() < 0.05


def test_signed_and_unsigned_weights_give_the_same_vectors() -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file(None)))
    tokenizer.no_padding()
    both = [_session(sentence_model(model_file().read_bytes(), signed=signed)) for signed in (True, False)]
    if _session(signed_probe()).run(None, {})[0].tolist() != [[SIGNED_SUM] * 16]:
        both.pop(0)  # this processor can't; then the unsigned ones are what is used
    for text in TEXTS:
        ids = np.array([tokenizer.encode(text).ids[:256]], np.int64)
        vectors = [session.run(None, {IDS: ids})[0] for session in both]
        np.testing.assert_allclose(vectors[0], vectors[-1], atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(vectors[-1]), 1, rtol=1e-5)


def _session(model: bytes) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "other"])
def test_damaged_weights_are_told(monkeypatch: pytest.MonkeyPatch, data_dir: Path, damage: str) -> None:
    whole = model_file().read_bytes()
    other = ModelWriter()
    other.node("Cast", ("x",), "y", to=FLOAT)
    damaged = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "noise": b"\xff" * 100,
        "other": other.model({"x": (FLOAT, ("n",))}, ("y", FLOAT, ("n",))),
    }[damage]
    file = data_dir / "model.onnx"
    file.write_bytes(damaged)
    monkeypatch.setattr(embedders, "model_file", lambda: file)
    with pytest.raises(NotReadable):
        sentence_model(damaged, signed=True)
    with pytest.raises(EmbedderUnavailable, match="damaged"):
        LocalEmbedder()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        nodes, constants = read(data)
    except NotReadable:
        return
    assert isinstance(nodes, list)
    assert isinstance(constants, dict)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8, np.int32, np.int64])
def test_what_is_written_can_be_read_and_run(dtype: type[Any]) -> None:
    value = np.arange(6).reshape(2, 3).astype(dtype)
    out = ModelWriter()
    out.node("Cast", (out.constant("c", value),), "f", to=FLOAT)
    out.node("Add", ("x", "f"), "s")
    out.split(("s", out.constant("parts", np.array([1, 2], np.int64))), ("left", "right"), axis=-1)
    data = out.model({"x": (FLOAT, ("n", 3))}, ("right", FLOAT, ("n", 2)))
    nodes, constants = read(data)
    assert [(node.kind, node.takes, node.makes) for node in nodes] == [
        ("Cast", ("c",), ("f",)),
        ("Add", ("x", "f"), ("s",)),
        ("Split", ("s", "parts"), ("left", "right")),
    ]
    np.testing.assert_array_equal(constants["c"], value)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    ones = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": ones})[0], [[2, 3], [5, 6]])
