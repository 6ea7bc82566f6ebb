"""A voice agent's memory: what was said, by voice or text, remembered across calls, chats and devices.

Everything named in ``__all__`` can be imported from here; what a name needs is loaded when it is first used, so that
``import memory`` costs nothing and a process pays only for the parts it uses. Above: users' code, agent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memory.errors import (
        DataDirectoryUnusable,
        DataTooNew,
        EmbeddedServerUnavailable,
        EmbedderUnavailable,
        EmbeddingChanged,
        EntryTooLarge,
        GraphStale,
        HostUnavailable,
        InvalidEntry,
        InvalidIdentity,
        NoGraphServer,
        NotTheWriter,
        ProviderAnswerInvalid,
        ProviderFault,
        ProviderRefused,
        ProviderUnavailable,
        SessionOwnership,
        SettingsError,
        SnapshotError,
        SpoolUnusable,
        StoreFault,
        StoreUnavailable,
        VoiceMemoryError,
    )
    from memory.models import (
        ConversationContext,
        Fact,
        MemoryEntry,
        MemoryEvent,
        MemorySettings,
        Passage,
        Recall,
        Scope,
    )
    from memory.plugin import AttachedMemory, attach
    from memory.service import UnifiedMemoryService
    from memory.settings import Settings, load_settings

_HOMES = {
    "memory.errors": (
        "DataDirectoryUnusable",
        "DataTooNew",
        "EmbeddedServerUnavailable",
        "EmbedderUnavailable",
        "EmbeddingChanged",
        "EntryTooLarge",
        "GraphStale",
        "HostUnavailable",
        "InvalidEntry",
        "InvalidIdentity",
        "NoGraphServer",
        "NotTheWriter",
        "ProviderAnswerInvalid",
        "ProviderFault",
        "ProviderRefused",
        "ProviderUnavailable",
        "SessionOwnership",
        "SettingsError",
        "SnapshotError",
        "SpoolUnusable",
        "StoreFault",
        "StoreUnavailable",
        "VoiceMemoryError",
    ),
    "memory.models": (
        "ConversationContext",
        "Fact",
        "MemoryEntry",
        "MemoryEvent",
        "MemorySettings",
        "Passage",
        "Recall",
        "Scope",
    ),
    "memory.plugin": ("AttachedMemory", "attach"),
    "memory.service": ("UnifiedMemoryService",),
    "memory.settings": ("Settings", "load_settings"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AttachedMemory",
    "ConversationContext",
    "DataDirectoryUnusable",
    "DataTooNew",
    "EmbeddedServerUnavailable",
    "EmbedderUnavailable",
    "EmbeddingChanged",
    "EntryTooLarge",
    "Fact",
    "GraphStale",
    "HostUnavailable",
    "InvalidEntry",
    "InvalidIdentity",
    "MemoryEntry",
    "MemoryEvent",
    "MemorySettings",
    "NoGraphServer",
    "NotTheWriter",
    "Passage",
    "ProviderAnswerInvalid",
    "ProviderFault",
    "ProviderRefused",
    "ProviderUnavailable",
    "Recall",
    "Scope",
    "SessionOwnership",
    "Settings",
    "SettingsError",
    "SnapshotError",
    "SpoolUnusable",
    "StoreFault",
    "StoreUnavailable",
    "UnifiedMemoryService",
    "VoiceMemoryError",
    "attach",
    "load_settings",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'memory' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
