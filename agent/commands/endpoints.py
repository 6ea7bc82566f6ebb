"""The checks of ``agent doctor`` that ask a server of somebody else: an endpoint of OpenAI's API, a LiveKit server.

What a server sends is never printed. Above: doctor. Below: checks (what a finding is).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from agent.commands.checks import NET_TIMEOUT_S, Finding, Patient, configured, place
from agent.settings import PARTS, AgentSettings

OPENAI_URL = "https://api.openai.com/v1"
_ANSWER_BYTES_MAX = 2_000_000


@configured
async def check_openai(patient: Patient) -> Finding:
    """Whether the endpoint lists its models, takes the key, and has those that are configured."""
    agent = patient.agent
    parts = [part for part in PARTS if agent.provider(part) == "openai"]
    if not parts:
        return Finding("off", "not used")
    base = agent.openai_base_url or OPENAI_URL
    key = agent.openai_api_key
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    try:
        status, answer = await _get(f"{base.rstrip('/')}/models", headers)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        fix = f"Check OPENAI_BASE_URL, and that this machine reaches {place(base)}."
        return Finding("fail", f"{place(base)} does not answer ({type(error).__name__})", fix)
    if status in (401, 403):
        return Finding("fail", f"{place(base)} refuses the key ({status})", "Set OPENAI_API_KEY to a valid key.")
    if status != 200:
        # Some servers of this API can't list their models; they may work all the same.
        return Finding(
            "warn", f"{place(base)} answers, but lists no models ({status})", "Check OPENAI_BASE_URL's path."
        )
    missing = _unlisted(agent, answer)
    if missing:
        fix = f"Choose models that it has: {', '.join(f'AGENT_{part.upper()}_MODEL' for part in missing)}."
        return Finding("warn", f"{place(base)} answers, but does not list {', '.join(missing.values())}", fix)
    return Finding("ok", f"{place(base)} answers and has {', '.join(agent.model(part) for part in parts)}")


async def _get(url: str, headers: Mapping[str, str]) -> tuple[int, Any]:
    timeout = aiohttp.ClientTimeout(total=NET_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
        session.get(url, headers=headers) as response,
    ):
        if response.status != 200 or (response.content_length or 0) > _ANSWER_BYTES_MAX:
            return response.status, None
        try:
            return response.status, await response.json(content_type=None)
        except ValueError:
            return response.status, None


def _unlisted(agent: AgentSettings, answer: Any) -> dict[str, str]:
    """The configured models, by part, that the endpoint's list lacks; none where there is no list."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(listed, list) or not listed:
        return {}
    names = {model.get("id") for model in listed if isinstance(model, dict)}
    wanted = {part: agent.model(part) for part in PARTS if agent.provider(part) == "openai"}
    return {part: model for part, model in wanted.items() if model not in names}


@configured
async def check_livekit(patient: Patient) -> Finding:
    """Whether the LiveKit server answers and takes the keys."""
    agent = patient.agent
    if not agent.livekit_url:
        if "livekit" in map(agent.provider, PARTS):
            return Finding("ok", "LiveKit Inference is used; it is not asked, as answers cost money")
        return Finding("off", "LIVEKIT_URL is not set")
    where = place(agent.livekit_url)
    try:
        if not agent.has_livekit_keys:
            await _get(_http(agent.livekit_url), {})
            fix = "Set LIVEKIT_API_KEY and LIVEKIT_API_SECRET of this server."
            return Finding("fail", f"{where} answers, but its keys are not set", fix)
        return await _with_keys(agent, where)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        fix = "Check LIVEKIT_URL, and that the server runs and is reachable from here."
        return Finding("fail", f"{where} does not answer ({type(error).__name__})", fix)


async def _with_keys(agent: AgentSettings, where: str) -> Finding:
    from livekit import api

    secret = agent.livekit_api_secret
    timeout = aiohttp.ClientTimeout(total=NET_TIMEOUT_S)
    server = api.LiveKitAPI(
        agent.livekit_url, agent.livekit_api_key, secret.get_secret_value() if secret else None, timeout=timeout
    )
    try:
        await server.room.list_rooms(api.ListRoomsRequest(names=["doctor"]))
    except api.TwirpError as error:
        fix = "Set LIVEKIT_API_KEY and LIVEKIT_API_SECRET to this server's own."
        return Finding("fail", f"{where} refuses the keys ({error.code})", fix)
    finally:
        await server.aclose()
    return Finding("ok", f"{where} answers and takes the keys")


def _http(url: str) -> str:
    return url.replace("wss://", "https://", 1).replace("ws://", "http://", 1)
