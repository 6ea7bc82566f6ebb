"""Why a model gave no answer, in words that say what to do. What a server sent is never repeated.

Above: chat, calls, download_files. Below: checks (how a place is written), settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from livekit.agents import APIError, APIStatusError, APITimeoutError

from agent.commands.checks import place
from agent.commands.endpoints import OPENAI_URL
from agent.settings import AgentSettings, Part

_CAUSES_MAX = 10
_DOCTOR = "python -m agent doctor shows what answers."


def why(error: object, part: Part, settings: AgentSettings) -> str:
    """What kept ``part`` from working, and what to do about it."""
    if settings.provider(part) == "local":
        # What our own models say of themselves holds no content.
        return f"{error if isinstance(error, APIError) else type(error).__name__} {_DOCTOR}"
    behind = list(causes(error))
    server = _server(settings, part)
    refused = next((cause for cause in behind if isinstance(cause, APIStatusError)), None)
    if refused is not None:
        return f"{server} {_refusal(refused.status_code, part, settings)}"
    if any(isinstance(cause, APITimeoutError | TimeoutError) for cause in behind):
        return f"{server} did not answer in time. Try again; {_DOCTOR}"
    if any(isinstance(cause, ValueError | AttributeError) for cause in behind):
        return f"{server} sent what is no answer. {_address(settings, part)}"
    return f"{server} can't be reached, or broke off ({type(behind[-1]).__name__}). {_address(settings, part)}"


def _refusal(status: int, part: Part, settings: AgentSettings) -> str:
    if status in (401, 403):
        return f"refuses the key ({status}). Set {_keys(settings, part)}."
    if status == 404:
        model = f"has no model {settings.model(part)}, or no such path (404)"
        return f"{model}. Set AGENT_{part.upper()}_MODEL. {_address(settings, part)}"
    if status == 429:
        return "takes no more requests for now (429): a rate limit, or no credit left. Try again later."
    if status >= 500:
        return f"failed ({status}). Try again later; {_DOCTOR}"
    return f"refuses the request ({status}). Check AGENT_{part.upper()}_MODEL; {_DOCTOR}"


def _server(settings: AgentSettings, part: Part) -> str:
    if settings.provider(part) == "livekit":
        return "LiveKit Inference"
    return place(settings.openai_base_url or OPENAI_URL)


def _keys(settings: AgentSettings, part: Part) -> str:
    if settings.provider(part) == "livekit":
        return "LIVEKIT_API_KEY and LIVEKIT_API_SECRET to valid ones"
    return "OPENAI_API_KEY to a valid key" if settings.openai_api_key else "OPENAI_API_KEY: this server needs one"


def _address(settings: AgentSettings, part: Part) -> str:
    if settings.provider(part) == "livekit":
        return _DOCTOR
    return f"Check OPENAI_BASE_URL; {_DOCTOR}"


def causes(error: object, *, contexts: bool = False) -> Iterator[object]:
    """The error and what caused it, outermost first, ``_CAUSES_MAX`` at most; with ``contexts`` also what was being
    handled when it was raised."""
    for _ in range(_CAUSES_MAX):
        if error is None:
            return
        yield error
        context = getattr(error, "__context__", None) if contexts else None
        suppressed = getattr(error, "__suppress_context__", False)
        error = getattr(error, "__cause__", None) or (None if suppressed else context)
