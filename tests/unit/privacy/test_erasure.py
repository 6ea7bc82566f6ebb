"""Erasing: what is meant, in which order, and what the receipt says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memory.errors import InvalidEntry, InvalidIdentity, StoreUnavailable
from memory.models import Scope
from memory.ports import LogSlice, Selection
from memory.privacy.erasure import ErasureReceipt, beyond_reach, erase, selection
from memory.settings import load_settings

ANA = Scope(org_id="o", agent_id="a", user_id="ana")
NOW = datetime(2026, 11, 30, 0, 5, tzinfo=UTC)


class Layer:
    """Notes what it is asked to erase, in a list shared by all layers."""

    def __init__(
        self, name: str, calls: list[tuple[str, Selection]], gone: int, error: Exception | None = None
    ) -> None:
        self.name, self.calls, self.gone, self.error = name, calls, gone, error

    async def read(self, scope: Scope, *, after: str, limit: int) -> LogSlice:
        assert (scope, limit) == (ANA, 0)
        return LogSlice((), "p-7", 0)

    async def erase(self, scope: Scope, what: Selection) -> int:
        assert scope == ANA
        self.calls.append((self.name, what))
        if self.error:
            raise self.error
        return self.gone


def layers(*gone: int, error: Exception | None = None) -> tuple[list[tuple[str, Selection]], dict[str, Any]]:
    calls: list[tuple[str, Selection]] = []
    names = ("archive", "sessions", "recall")
    return calls, {name: Layer(name, calls, n, error) for name, n in zip(names, gone, strict=True)}


@pytest.mark.promise("P-erased")
async def test_P_erased_the_archive_is_barred_first_then_the_log_then_what_is_made_of_them() -> None:
    calls, found = layers(3, 2, 1)
    receipt = await erase(ANA, Selection("all"), **found, beyond_reach=["tapes"])
    meant = Selection("all", through="p-7")
    assert calls == [("archive", meant), ("sessions", meant), ("recall", meant)]
    assert receipt == ErasureReceipt(meant, sessions=2, archive=3, recall=1, beyond_reach=("tapes",))
    assert receipt
    assert str(receipt) == "Deleted 3 entries and events. Beyond reach: tapes."


async def test_a_given_position_is_kept_to() -> None:
    calls, found = layers(0, 0, 0)
    await erase(ANA, Selection("session", session_id="s", through="p-3"), **found)
    assert {what.through for _, what in calls} == {"p-3"}


@pytest.mark.promise("P-erased")
async def test_P_erased_the_spool_goes_before_the_log_is_read() -> None:
    calls, found = layers(0, 0, 0)
    receipt = await erase(ANA, Selection("all"), **found, spool=Layer("spool", calls, 4))
    assert [(name, what.through) for name, what in calls] == [
        ("spool", ""),
        ("archive", "p-7"),
        ("sessions", "p-7"),
        ("recall", "p-7"),
    ]
    assert (receipt.spool, receipt.deleted, bool(receipt)) == (4, 4, True)


@pytest.mark.case("L23")
async def test_L23_nothing_deleted_is_never_called_a_success() -> None:
    _, found = layers(0, 0, 0)
    receipt = await erase(ANA, Selection("all"), **found, beyond_reach=["tapes"])
    assert not receipt
    assert receipt.deleted == 0
    assert str(receipt) == "Nothing was stored, so nothing was deleted."


async def test_a_layer_that_is_away_is_no_success_either() -> None:
    calls, found = layers(1, 1, 1, error=StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        await erase(ANA, Selection("all"), **found)
    assert [name for name, _ in calls] == ["archive"]


def test_what_users_mean_by_session_day_and_all() -> None:
    assert selection("all", session_id=None, now=NOW) == Selection("all")
    assert selection("session", session_id="s1", now=NOW) == Selection("session", session_id="s1")
    assert selection("day", session_id=None, now=NOW) == Selection("since", since=NOW - timedelta(days=1))
    with pytest.raises(InvalidIdentity, match="say which session"):
        selection("session", session_id=None, now=NOW)
    with pytest.raises(InvalidEntry, match="'session', 'day' or 'all'"):
        selection("year", session_id=None, now=NOW)  # type: ignore[arg-type]


def test_what_is_beyond_reach_depends_on_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(beyond_reach(load_settings())) == 1
    monkeypatch.setenv("DATABASE_URL", "postgresql://u@h/d")
    monkeypatch.setenv("REDIS_HOST", "redis.example")
    text = "; ".join(beyond_reach(load_settings()))
    assert "PostgreSQL's write-ahead log" in text
    assert "Redis server's own snapshots" in text
    assert "turns that other machines hold" in text
    assert "recall's snapshots on machines where nobody uses the memory now" in text
    assert "statistics" not in text  # migration 0003: they sample nothing of users
