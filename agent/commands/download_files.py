"""``python -m agent download-files``: what doesn't come inside the packages and would else be missed at run time.

The embedder's tokenizer, unless its package is installed, and the files of whatever LiveKit plugins are installed.
For images: run it when building one. Above: cli. Below: memory.providers.embedders.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil

from livekit.agents import Plugin

from agent.commands.output import Output
from agent.settings import load
from memory.datadir import prepare
from memory.errors import EmbedderUnavailable
from memory.settings import Settings


def run(_: argparse.Namespace) -> int:
    """Fetch everything that is missing; 1 if something could not be fetched."""
    settings = load().memory
    output = Output()
    fetched = [_fetch_tokenizer(settings, output), *(_fetch_of(plugin, output) for plugin in _plugins())]
    output.close()
    return 0 if all(fetched) else 1


def _fetch_tokenizer(settings: Settings, output: Output) -> bool:
    from memory.providers.embedders import fetch_tokenizer

    if settings.embedder == "none":
        output.line("embedder: not used (MEMORY_EMBEDDER=none)")
        return True
    prepare(settings.data_dir)
    try:
        output.line(f"embedder's tokenizer: {fetch_tokenizer(settings.data_dir)}")
    except EmbedderUnavailable as error:
        output.line(f"embedder's tokenizer: {error}")
        return False
    return True


def _plugins() -> list[Plugin]:
    """The LiveKit plugins that are installed; importing one registers it."""
    plugins = importlib.import_module("livekit.plugins")
    for module in pkgutil.iter_modules(plugins.__path__, prefix="livekit.plugins."):
        importlib.import_module(module.name)
    return list(Plugin.registered_plugins)


def _fetch_of(plugin: Plugin, output: Output) -> bool:
    try:
        plugin.download_files()
    except Exception as error:  # each plugin raises what its own transport does
        output.line(f"{plugin.package}: not fetched ({type(error).__name__})")
        return False
    output.line(f"{plugin.package}: ready")
    return True
