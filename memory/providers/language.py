"""The LLM of ingestion, over OpenAI's API or a compatible server's: one call, one answer of a given shape.

Above: wiring, the evaluation. Below: knowledge_ports (the ``LanguageModel`` contract), errors, limits. ``openai`` is
imported when the first client is made, never before.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from memory.errors import ProviderAnswerInvalid
from memory.knowledge_ports import Answer, Usage
from memory.limits import LLM_OUTPUT_TOKENS_MAX, LLM_TIMEOUT_S
from memory.providers.remote_faults import provider_fault

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

NO_KEY = "none"  # for servers that ask for no key; the client insists on one

_FENCE = re.compile(r"^```[\w-]*[ \t]*\r?\n?|\r?\n?```[ \t]*$")
_REASONING = re.compile(r"^(?:o\d|gpt-[5-9])")  # models that take no temperature, and another name for the bound

# US dollars per million tokens, in and out, as published in 2026. A dated name ("gpt-4o-mini-2024-07-18") is found too.
_PRICES: dict[str, tuple[float, float]] = {
    "gpt-4o-mini": (0.15, 0.60),
    "gpt-4o": (2.50, 10.00),
    "gpt-4.1-nano": (0.10, 0.40),
    "gpt-4.1-mini": (0.40, 1.60),
    "gpt-4.1": (2.00, 8.00),
    "gpt-5-nano": (0.05, 0.40),
    "gpt-5-mini": (0.25, 2.00),
    "gpt-5": (1.25, 10.00),
}
_DATED = re.compile(r"-(?:20\d\d-\d\d-\d\d|latest)$")


def cost_usd(model: str, usage: Usage) -> float | None:
    """About what ``usage`` costs at OpenAI's list prices; ``None`` for a model without one here."""
    price = _PRICES.get(_DATED.sub("", model))
    if price is None:
        return None
    return (usage.input_tokens * price[0] + usage.output_tokens * price[1]) / 1e6


@dataclass(slots=True)
class _Counts:
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class OpenAiLanguageModel:
    """``LanguageModel`` by chat completions. ``base_url`` ``None``: OpenAI's own.

    Asks for ``json_schema``, strict, at temperature 0; a server that refuses that (400) is asked for ``json_object``
    with the schema in the instructions, from then on. Never repeats a call. Belongs to one event loop.
    """

    def __init__(
        self, model: str, *, api_key: str | None, base_url: str | None = None, timeout_s: float = LLM_TIMEOUT_S
    ) -> None:
        self._model = model
        self._api_key = api_key or NO_KEY
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._client: AsyncOpenAI | None = None
        self._schemas = True
        self._counts = _Counts()
        self.calls: Counter[str] = Counter()  # by task

    @property
    def name(self) -> str:
        return self._model

    @property
    def usage(self) -> Usage:
        return Usage(self._counts.calls, self._counts.input_tokens, self._counts.output_tokens)

    @property
    def cost_usd(self) -> float | None:
        """About, so far; ``None``: no price of this model is known."""
        return cost_usd(self._model, self.usage)

    async def answer(self, task: str, *, instructions: str, data: str, shape: type[Answer]) -> Answer:
        """One call, two where a server turns out not to know ``json_schema``; as the contract says."""
        client = await self._opened()
        self.calls[task] += 1
        if self._schemas:
            try:
                return self._read(await self._ask(client, instructions, data, _schema_format(shape)), shape)
            except _NoSchemas:
                self._schemas = False
        schema = json.dumps(shape.model_json_schema(), ensure_ascii=False)
        instructions = f"{instructions}\nAnswer with one JSON object of this schema, and nothing else:\n{schema}\n"
        return self._read(await self._ask(client, instructions, data, {"type": "json_object"}), shape)

    async def aclose(self) -> None:
        """Close the connections. Idempotent; the next call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _opened(self) -> AsyncOpenAI:
        if self._client is None:
            client = await asyncio.to_thread(open_client, self._api_key, self._base_url, self._timeout_s)
            self._client = self._client or client
        return self._client

    async def _ask(self, client: AsyncOpenAI, instructions: str, data: str, form: dict[str, Any]) -> ChatCompletion:
        self._counts.calls += 1
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": data}]
        create: Any = client.chat.completions.create  # its overloads don't take a request as a mapping
        try:
            async with asyncio.timeout(self._timeout_s):
                answer: ChatCompletion = await create(
                    model=self._model, messages=messages, response_format=form, **_bounds(self._model)
                )
        except Exception as error:
            if form["type"] == "json_schema" and _refuses_schemas(error):
                raise _NoSchemas from None
            raise provider_fault(error, "The LLM") from None
        if answer.usage is not None:
            self._counts.input_tokens += answer.usage.prompt_tokens
            self._counts.output_tokens += answer.usage.completion_tokens
        return answer

    def _read(self, answer: ChatCompletion, shape: type[Answer]) -> Answer:
        choice = answer.choices[0] if answer.choices else None
        if choice is None or (choice.finish_reason != "length" and not choice.message.content):
            raise ProviderAnswerInvalid("The LLM answered nothing, or refused to; it is asked again later.")
        if choice.finish_reason == "length":
            raise ProviderAnswerInvalid(
                f"The LLM's answer was cut off at {LLM_OUTPUT_TOKENS_MAX} tokens; lower MEMORY_CHUNK_TOKENS.",
                cut_off=True,
            )
        text = _FENCE.sub("", (choice.message.content or "").strip())
        try:
            return shape.model_validate_json(text)
        except ValidationError:  # its message quotes the answer
            raise ProviderAnswerInvalid(
                "The LLM's answer is no JSON of the shape that was asked for. If this goes on, set GRAPHITI_LLM_MODEL "
                "to a model that can do structured output."
            ) from None


class _NoSchemas(Exception):
    """The server doesn't know json_schema."""


def open_client(api_key: str, base_url: str | None, timeout_s: float) -> AsyncOpenAI:
    """In a thread: the import alone takes a second."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key=api_key, base_url=base_url, timeout=timeout_s, max_retries=0)


def _bounds(model: str) -> dict[str, Any]:
    if _REASONING.match(model):
        return {"max_completion_tokens": LLM_OUTPUT_TOKENS_MAX}
    return {"max_tokens": LLM_OUTPUT_TOKENS_MAX, "temperature": 0}


def _refuses_schemas(error: Exception) -> bool:
    """400 (or 422, as some servers say it) for the response format, by name where the server says what is wrong."""
    if getattr(error, "status_code", None) not in (400, 422):
        return False
    said = str(getattr(error, "message", "")).lower()
    return not said or any(
        word in said for word in ("response_format", "json_schema", "schema", "format", "unsupported")
    )


def _schema_format(shape: type[BaseModel]) -> dict[str, Any]:
    schema = _strict(shape.model_json_schema())
    return {"type": "json_schema", "json_schema": {"name": shape.__name__, "strict": True, "schema": schema}}


def _strict(schema: Any) -> Any:
    """OpenAI's strict subset: every object closed, every property required, no defaults."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items() if key != "default"}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made |= {"additionalProperties": False, "required": list(made["properties"])}
    return made
