"""The real models, loaded once, and the scripted speech service."""

from __future__ import annotations

import importlib.util

import pytest

from agent.local.models import PACKAGES, SpeechToText, TextToSpeech
from tests.unit.agent_local.scripted import ScriptedService


def _require_models() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'livekit-unified-memory[local]'")


@pytest.fixture(scope="session")
def listener() -> SpeechToText:
    _require_models()
    return SpeechToText()


@pytest.fixture(scope="session")
def talker() -> TextToSpeech:
    _require_models()
    return TextToSpeech()


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()
