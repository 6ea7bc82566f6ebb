"""What an erasure leaves of what was learnt, in SQL and in SQLite's files: nothing of it, and all of the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory.errors import StoreFault
from memory.knowledge import Knowledge, SessionDigest
from memory.knowledge_ports import SessionRef
from memory.models import Scope
from memory.ports import Selection
from memory.stores.knowledge_sql import SqlKnowledgeStore
from memory.stores.sql import SqlArchive
from tests.support.archives import entry, logged, new_scope, sqlite_url
from tests.support.knowing import Stores, episode, learnt, opened, unprojected, worded

SECRET = "xyzzy-of-ana"


@pytest.fixture
async def stores(data_dir: Path) -> AsyncIterator[Stores]:
    async with opened(sqlite_url(data_dir)) as found:
        yield found


@pytest.fixture
def scope() -> Scope:
    return new_scope(user_id=f"{SECRET}-id")


def held(data_dir: Path, text: str) -> list[str]:
    """The files that hold ``text``."""
    return [path.name for path in data_dir.iterdir() if path.is_file() and text.encode() in path.read_bytes()]


async def learn_secrets(stores: Stores, scope: Scope) -> None:
    """The secret in every column that content can be in, from session s1; session s2 knows of tea."""
    chunk = await stores.chunk(scope, [entry(SECRET, session="s1")])
    await stores.chunks.keep_answers(chunk, f'["{SECRET} answers"]')
    patch = learnt(chunk, f"{SECRET} fact", "tea")
    about = replace(episode(chunk), name=f"{SECRET} name", body=f"User: {SECRET}")
    assert await stores.knowledge.commit(chunk, replace(patch, episode=about), unprojected)
    other = await stores.chunk(scope, [entry("tea", session="s2")], start=2)
    again = worded(patch.facts[1], "tea, as ever", other)
    known = replace(patch.facts[1], episodes=(chunk.id, other.id))
    second = learnt(other)
    assert await stores.knowledge.commit(other, replace(second, wordings=(again,), changed=(known,)), unprojected)
    digest = SessionDigest("s1", f"{SECRET} digest", (SECRET,), "extractive", 1, entry().timestamp, entry().timestamp)
    assert await stores.digests.put(await ref_of(stores, scope), digest)


async def ref_of(stores: Stores, scope: Scope) -> SessionRef:
    return SessionRef(await stores.user(scope), "s1")


@pytest.mark.promise("P-forget")
async def test_P_forget_nothing_that_was_learnt_from_a_session_stays_in_a_file(
    stores: Stores, scope: Scope, data_dir: Path
) -> None:
    await learn_secrets(stores, scope)
    assert held(data_dir, SECRET)
    await stores.archive.erase(scope, Selection("session", session_id="s1"))
    for what in ("answers", "fact", "name", "digest"):
        assert held(data_dir, f"{SECRET} {what}") == []
    assert held(data_dir, f"User: {SECRET}") == []
    known = (await stores.knowledge.read(scope))[1]
    assert [fact.statement.text for fact in known.facts] == ["tea, as ever"]
    assert known.wordings == ()


@pytest.mark.promise("P-forget")
async def test_P_forget_once_the_graph_has_it_too_nobody_is_named_any_more(
    stores: Stores, scope: Scope, data_dir: Path
) -> None:
    await learn_secrets(stores, scope)
    await stores.archive.erase(scope, Selection("all"))
    assert (await stores.knowledge.read(scope))[1] == Knowledge()
    todos = await stores.knowledge.pending_graph_erasures(limit=9)
    assert [todo.scope for todo in todos] == [scope]
    await stores.knowledge.graph_settled([todo.id for todo in todos])
    assert held(data_dir, SECRET) == []


async def test_an_archive_that_can_not_tell_facts_apart_erases_a_user_whole_or_says_so(
    stores: Stores, scope: Scope, data_dir: Path
) -> None:
    await learn_secrets(stores, scope)
    archive = await SqlArchive.open(sqlite_url(data_dir))
    try:
        with pytest.raises(StoreFault, match="from one session"):
            await archive.erase(scope, Selection("session", session_id="s1"))
        assert len((await stores.knowledge.read(scope))[1].facts) == 2
        assert await archive.erase(scope, Selection("all")) == 2
    finally:
        await archive.aclose()
    assert (await stores.knowledge.read(scope))[1] == Knowledge()


async def test_an_archive_of_turns_alone_erases_without_it(scope: Scope, data_dir: Path) -> None:
    archive = await SqlArchive.open(sqlite_url(data_dir))
    try:
        await archive.store(scope, logged([entry(), entry(session="s2")]))
        assert await archive.erase(scope, Selection("session", session_id="s2")) == 1
        assert await SqlKnowledgeStore(archive.database, archive.users, archive.clock).version(scope) == 0
    finally:
        await archive.aclose()
