"""``python -m agent start | dev | console``: LiveKit's own commands, for this agent.

What LiveKit's command line knows (``--log-level``, ``--url``, …) is handed on to it. Above: cli. Below: agent.serve.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import warnings
from pathlib import Path

from agent.commands.conversation import check_data_dir, notice
from agent.commands.dev_ingest import STARTED_ALONE, beside
from agent.models import build
from agent.settings import Configuration, load
from memory.errors import SettingsError, VoiceMemoryError

_LIVEKIT = {"start": ("start",), "dev": ("start", "--dev", "--log-format", "colored"), "console": ("console",)}
_ADDRESS = "--connect-addr"
_DEV_SECRET = "secret"  # noqa: S105 - everybody's
CONSOLE_HINT = f"""console needs {_ADDRESS}: LiveKit's CLI runs it, and has the microphone (lk agent console).
Without that, talk with the agent by typing: python -m agent chat"""


def run(arguments: argparse.Namespace) -> int:
    """Run the worker until it is told to end; 1 if it ended by itself.

    Raises:
        SettingsError: settings are wrong, or LiveKit's server and keys are not named.
        ModelUnavailable: a model's package is missing.
        DataDirectoryUnusable, DataTooNew, EmbeddedServerUnavailable, StoreFault: nothing could ever be stored.
    """
    from livekit.agents.__main__ import main

    configuration = load()
    options = list(arguments.options)
    if arguments.command == "console":
        if not any(option.startswith(_ADDRESS) for option in options):
            notice(CONSOLE_HINT)
            return 2
    else:
        _check_server(configuration, options)
        _allow_dev_secret(configuration)
    check_data_dir(configuration, voice=True)
    asyncio.run(_check_models(configuration))
    if arguments.verbose:
        options += ["--log-level", "DEBUG"]
    else:
        logging.getLogger("livekit.agents").addFilter(_told_in_words)
    from agent import serve

    with _ingestion(arguments.command, configuration):
        main([*_LIVEKIT[arguments.command], *options, str(Path(serve.__file__))])
    failure = serve.server.failure
    if isinstance(failure, VoiceMemoryError):
        raise failure
    return 0 if failure is None else 1


def _ingestion(command: str, configuration: Configuration) -> contextlib.AbstractContextManager[None]:
    """``dev`` has an ingestion worker of its own; ``start`` leaves that to ``ingest``, on whatever machine."""
    if command == "dev":
        return beside(configuration)
    if command == "start" and configuration.memory.enabled:
        notice(STARTED_ALONE)
    return contextlib.nullcontext()


def _check_server(configuration: Configuration, options: list[str]) -> None:
    """That a LiveKit server is named: LiveKit itself would log its absence, with a traceback."""
    agent = configuration.agent
    given = {
        "LIVEKIT_URL": (agent.livekit_url, "--url"),
        "LIVEKIT_API_KEY": (agent.livekit_api_key, "--api-key"),
        "LIVEKIT_API_SECRET": (agent.livekit_api_secret, "--api-secret"),
    }
    missing = [
        name
        for name, (value, option) in given.items()
        if value is None and not any(each.split("=")[0] == option for each in options)
    ]
    if missing:
        what = "the LiveKit server that the worker takes calls from, such as ws://127.0.0.1:7880"
        raise SettingsError(
            [f"{name}: not set; {what if name == 'LIVEKIT_URL' else 'that server has it'}" for name in missing]
        )


def _told_in_words(record: logging.LogRecord) -> bool:
    """Leave the traceback out where the worker ends with an error that says what to do."""
    if record.exc_info and isinstance(record.exc_info[1], VoiceMemoryError):
        record.exc_info = None
    return True


def _allow_dev_secret(configuration: Configuration) -> None:
    """That of ``livekit-server --dev`` can't be another one; any other that short is warned of."""
    secret = configuration.agent.livekit_api_secret
    if secret is not None and secret.get_secret_value() == _DEV_SECRET:
        warnings.filterwarnings("ignore", message="The HMAC key is")


async def _check_models(configuration: Configuration) -> None:
    """That every call's models can be made: better no worker than one whose calls all fail."""
    await build(configuration.agent, configuration.memory.data_dir, voice=True).aclose()
