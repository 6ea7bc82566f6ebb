"""The limits hold together, and the check of it would notice."""

from __future__ import annotations

import pytest

from memory import limits


def test_the_limits_do_not_contradict_each_other() -> None:
    limits.check()


@pytest.mark.parametrize(
    ("name", "value", "broken"),
    [
        ("WRITER_LEASE_S", 1, "a lease outlives two heartbeats"),
        ("STORE_TIMEOUT_S", 60.0, "a store call fits into an attempt to record"),
        ("SESSION_MESSAGES_DEFAULT", 10**6, "the default history fits into what is kept"),
        ("BLOCK_TOKENS_DEFAULT", 10**6, "the block fits into the context"),
        ("ENTRY_CONTENT_BYTES_MAX", 10**9, "one entry fits into a message of a host"),
        ("SPOOL_AFTER_S", 0.2, "a late turn is on disk before its reply is held up for it"),
        ("SPOOL_BYTES_MAX", 10**6, "one entry fits into a session's spool"),
        ("SPOOL_ERASE_S", 1.0, "an erasure waits for longer than an attempt to record takes"),
        ("ENTRY_RETRIEVED_BYTES_MAX", 10**9, "one entry fits into a message of a host"),
    ],
)
def test_a_contradiction_is_found(monkeypatch: pytest.MonkeyPatch, name: str, value: float, broken: str) -> None:
    monkeypatch.setattr(limits, name, value)
    with pytest.raises(AssertionError, match=broken):
        limits.check()
