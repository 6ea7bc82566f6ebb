"""``python -m agent download-files``: what doesn't come inside the packages and would else be missed at run time.

The embedder's tokenizer, unless its package is installed, and the files of whatever LiveKit plugins are installed.
For images: run it when building one. The exit code is 75 (``HUB_AWAY_CODE``) where all that is wrong is that nobody at
the other end answers, so that a build without a network can go on, and one with a broken command can't.
Above: cli. Below: memory.providers.embedders.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import pkgutil
import socket
from collections.abc import Iterator

from livekit.agents import Plugin

from agent.commands.failures import causes
from agent.commands.output import Output
from agent.settings import load
from memory.datadir import prepare
from memory.errors import EmbedderUnavailable
from memory.settings import Settings

HUB_AWAY_CODE = 75  # EX_TEMPFAIL; Python itself, argparse and the other commands end with no such code
_OUT_OF_REACH = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}


def run(_: argparse.Namespace) -> int:
    """Fetch everything that is missing: 0, all is there; 75, not for want of a network; 1, something else is wrong."""
    settings = load().memory
    output = Output()
    try:
        codes = [_fetch_tokenizer(settings, output), *_fetch_of_plugins(output)]
    finally:
        output.close()
    return min(filter(None, codes), default=0)


def _fetch_tokenizer(settings: Settings, output: Output) -> int:
    from memory.providers.embedders import fetch_tokenizer

    if settings.embedder == "none":
        output.line("embedder: not used (MEMORY_EMBEDDER=none)")
        return 0
    prepare(settings.data_dir)
    try:
        output.line(f"embedder's tokenizer: {fetch_tokenizer(settings.data_dir)}")
    except EmbedderUnavailable as error:
        output.line(f"embedder's tokenizer: {error}")
        return _code_of(error)
    return 0


def _fetch_of_plugins(output: Output) -> Iterator[int]:
    """Importing a plugin registers it."""
    packages = importlib.import_module("livekit.plugins")
    for module in pkgutil.iter_modules(packages.__path__, prefix="livekit.plugins."):
        try:
            importlib.import_module(module.name)
        except Exception as error:  # the others are fetched all the same
            output.line(f"{module.name}: can't be imported ({type(error).__name__}: {error})")
            yield 1
    for plugin in list(Plugin.registered_plugins):
        yield _fetch_of(plugin, output)


def _fetch_of(plugin: Plugin, output: Output) -> int:
    try:
        plugin.download_files()
    except Exception as error:  # each plugin raises what its own transport does
        code = _code_of(error)
        why = "its hub can't be reached" if code == HUB_AWAY_CODE else f"{type(error).__name__}: {error}"
        output.line(f"{plugin.package}: not fetched ({why})")
        return code
    output.line(f"{plugin.package}: ready")
    return 0


def _code_of(error: Exception) -> int:
    return HUB_AWAY_CODE if any(map(_is_out_of_reach, causes(error, contexts=True))) else 1


def _is_out_of_reach(error: object) -> bool:
    # Transports wrap what the system says in classes of their own, and are not all installed.
    away = isinstance(error, ConnectionError | TimeoutError | socket.gaierror)
    return away or (isinstance(error, OSError) and error.errno in _OUT_OF_REACH)
