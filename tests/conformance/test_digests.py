"""What every store of digests promises, on SQLite and PostgreSQL: a session's newest, of nothing that is erased."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from memory.knowledge import SessionDigest
from memory.knowledge_ports import ArchivedEntry, SessionRef
from memory.models import Scope
from memory.ports import Selection
from tests.support.archives import entry, event, new_scope, position, turns
from tests.support.knowing import Stores


def digest_of(entries: list[ArchivedEntry], summary: str = "a talk", **fields: Any) -> SessionDigest:
    given: dict[str, Any] = {"key_moments": ("it's “late”",), "made_by": "extractive", **fields}
    return SessionDigest(
        session_id=entries[0].entry.session_id,
        summary=summary,
        through_cursor=entries[-1].cursor,
        first_at=min(item.entry.timestamp for item in entries),
        last_at=max(item.entry.timestamp for item in entries),
        **given,
    )


async def due(stores: Stores, *, before_s: float = 60, limit: int = 10) -> list[SessionRef]:
    return await stores.digests.undigested(before=stores.clock.now() + timedelta(seconds=before_s), limit=limit)


async def test_a_session_is_due_once_it_is_quiet_until_its_newest_turn_is_covered(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, [*turns(3), event()])
    assert await due(stores, before_s=0) == []
    assert await due(stores) == [ref]
    entries = await stores.digests.entries(ref, limit=100)
    assert [item.entry.content for item in entries] == ["turn 0", "turn 1", "turn 2"]
    assert await stores.digests.put(ref, digest_of(entries))
    assert await due(stores) == []
    await stores.store(scope, [entry("more", minute=9)], start=9)
    assert await due(stores) == [ref]


async def test_the_newest_turns_are_handed_out_oldest_first(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(5))
    assert [item.entry.content for item in await stores.digests.entries(ref, limit=2)] == ["turn 3", "turn 4"]
    assert await stores.digests.entries(SessionRef(ref.user, "other"), limit=2) == []


@pytest.mark.case("L37")
async def test_L37_of_very_long_turns_the_newest_are_handed_out(
    stores: Stores, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.stores.digests_sql.ARCHIVE_READ_CHARS_MAX", 1_000)
    ref = await stores.store(scope, [entry("x" * size, minute=minute) for minute, size in enumerate((300, 400, 401))])
    sizes = [len(item.entry.content) for item in await stores.digests.entries(ref, limit=100)]
    assert sizes == [400, 401]
    await stores.store(scope, [entry("x" * 5_000, minute=9)], start=9)
    assert [len(item.entry.content) for item in await stores.digests.entries(ref, limit=100)] == [5_000]


async def test_what_is_put_is_given_back_newest_first(stores: Stores, scope: Scope) -> None:
    kept = []
    for number, session in enumerate("abc"):
        ref = await stores.store(scope, [entry(session, session=session, minute=number)], start=1 + number)
        digest = digest_of(await stores.digests.entries(ref, limit=9), f"about {session}", made_by="an LLM")
        assert await stores.digests.put(ref, digest)
        kept.append(digest)
    assert await stores.digests.digests(scope, limit=9) == kept[::-1]
    assert await stores.digests.digests(scope, limit=2) == kept[:0:-1]
    assert await stores.digests.digests(new_scope(), limit=9) == []
    assert [await stores.digests.digest(SessionRef(ref.user, session)) for session in "abc"] == kept
    assert await stores.digests.digest(SessionRef(ref.user, "d")) is None
    assert await stores.digests.digest(SessionRef(ref.user + 1, "a")) is None


async def test_a_digest_that_reaches_further_replaces_and_an_older_one_does_not(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(4))
    entries = await stores.digests.entries(ref, limit=9)
    newer, older = digest_of(entries, "all of it"), digest_of(entries[:2], "half of it")
    assert await stores.digests.put(ref, older)
    assert await due(stores) == [ref]
    assert await stores.digests.put(ref, newer)
    assert await stores.digests.put(ref, older)
    assert await stores.digests.digests(scope, limit=9) == [newer]
    better = digest_of(entries, "all of it, by an LLM", made_by="an LLM")
    assert await stores.digests.put(ref, better)
    assert await stores.digests.digests(scope, limit=9) == [better]


async def test_a_session_that_is_gone_takes_no_digest(stores: Stores, scope: Scope) -> None:
    ref = await stores.store(scope, turns(2))
    digest = digest_of(await stores.digests.entries(ref, limit=9))
    await stores.archive.erase(scope, Selection("session", session_id="s1"))
    assert not await stores.digests.put(ref, digest)
    assert not await stores.digests.put(SessionRef(999_999, "s1"), digest)
    assert await stores.rows("session_digests") == 0


@pytest.mark.parametrize("what", ["since", "older", "all"])
async def test_P_forget_a_digest_of_erased_turns_is_gone_and_comes_back_by_nobody(
    stores: Stores, scope: Scope, what: str
) -> None:
    records = turns(4)
    ref = await stores.store(scope, records)
    digest = digest_of(await stores.digests.entries(ref, limit=9), "the secret")
    await stores.digests.put(ref, digest)
    selection = {
        "since": Selection("since", since=records[2].timestamp),
        "older": Selection("session", session_id="s1", through=position(2)),
        "all": Selection("all"),
    }[what]
    await stores.archive.erase(scope, selection)
    assert await stores.digests.digests(scope, limit=9) == []
    assert await stores.rows("session_digests") == 0
    assert not await stores.digests.put(ref, digest)
    assert await stores.digests.digests(scope, limit=9) == []
    if what == "all":
        return
    assert await due(stores) == [ref]
    assert await stores.digests.put(ref, digest_of(await stores.digests.entries(ref, limit=9), "the rest"))
    assert [one.summary for one in await stores.digests.digests(scope, limit=9)] == ["the rest"]
