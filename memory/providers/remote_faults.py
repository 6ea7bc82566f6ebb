"""What went wrong with a call to an LLM or embeddings endpoint, as the memory's own errors; none quotes the server.

Above: language, remote_embedder. Below: errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from memory.errors import ProviderAnswerInvalid, ProviderFault, ProviderRefused, ProviderUnavailable

RETRY_AFTER_S_MAX = 86_400.0
_CHECK = "check OPENAI_API_KEY, OPENAI_BASE_URL, GRAPHITI_LLM_MODEL and GRAPHITI_EMBEDDING_MODEL"


def provider_fault(error: Exception, what: str) -> ProviderFault:
    """The fault that an exception of the ``openai`` client stands for. ``what`` begins its message: "The LLM"."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return _by_status(error, what)
    if isinstance(error, asyncio.TimeoutError | openai.APITimeoutError):
        return ProviderUnavailable(f"{what} did not answer in time; it is asked again later.")
    if isinstance(error, openai.APIConnectionError):
        return ProviderUnavailable(f"{what} can't be reached; it is asked again later. If this goes on, {_CHECK}.")
    if isinstance(error, openai.APIResponseValidationError | openai.APIError | ValueError | TypeError):
        return ProviderAnswerInvalid(f"{what} answered with something that is not of OpenAI's API; {_CHECK}.")
    return ProviderUnavailable(f"{what} failed ({type(error).__name__}); it is asked again later.")


def _by_status(error: object, what: str) -> ProviderFault:
    status: int = getattr(error, "status_code", 0)
    code = str(getattr(error, "code", None) or "")
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
    if code == "insufficient_quota":  # a 429 that waiting won't mend
        return ProviderRefused(f"{what} refuses: the account's quota is used up; raise it with the provider.")
    if status in (401, 403, 404, 405):
        return ProviderRefused(f"{what} refuses with {status}; {_CHECK}.")
    if status in (408, 409, 425, 429) or status >= 500:
        return ProviderUnavailable(
            f"{what} is away or overloaded ({status}); it is asked again later.",
            retry_after_s=retry_after_s(headers),
        )
    return ProviderAnswerInvalid(f"{what} does not take the request ({status}); {_CHECK}.")


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """When to come back, from ``retry-after-ms`` or ``Retry-After`` in seconds or as a date; at most a day."""
    for name, scale in (("retry-after-ms", 1_000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        seconds = _number(value)
        if seconds is not None:
            return min(max(seconds / scale, 0.0), RETRY_AFTER_S_MAX)
        if name == "retry-after":
            return _until(value, now or datetime.now(UTC))
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number and abs(number) != float("inf") else None


def _until(text: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return min(max((moment - now).total_seconds(), 0.0), RETRY_AFTER_S_MAX)
