"""What was erased leaves PostgreSQL's table files too, soon, or is named as beyond reach."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from memory.ports import Selection
from memory.stores import vacuum
from memory.stores.vacuum import Vacuum
from tests.support import archives
from tests.support.archives import entry, event, logged, new_scope, opened, position, turns

WITHIN_S = 60.0
CANARY, KEPT = "canary-text", "kept-text"


@pytest.fixture
def url(server: str) -> Iterator[str]:
    with archives.fresh_database(server) as fresh:
        yield fresh


async def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """The rows of the last one."""
    engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    rows: list[tuple[object, ...]] = []
    async with engine.connect() as connection:
        for statement in statements:
            result = await connection.execute(sa.text(statement))
            rows = [tuple(row) for row in result] if result.returns_rows else []
    await engine.dispose()
    return rows


async def files_with(url: str, text: str) -> list[Path]:
    """The database's files that hold ``text``, its statistics included; what was written is on disk first."""
    ((directory, oid),) = await run(
        url,
        "CHECKPOINT",
        "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()",
    )
    base = Path(str(directory), "base", str(oid))
    if not base.exists():
        pytest.skip("needs a PostgreSQL server on this machine, to look into its files")
    files = [path for path in base.iterdir() if path.name[0].isdigit()]
    assert len(files) > 50
    return [path for path in files if text.encode() in _content(path)]


def _content(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):  # a table that was just written anew
        return path.read_bytes()
    return b""


async def gone(url: str, text: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await files_with(url, text):
            await asyncio.sleep(0.1)


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize("what", ["all", "session"])
async def test_P_erased_the_table_files_of_postgresql_do_not_hold_it_within_a_minute(url: str, what: str) -> None:
    scope, other = new_scope(user_id="+15550107777"), new_scope()
    async with opened(url) as archive:
        long = [entry(f"{CANARY} {number} " * 2_000, minute=number, name="canary-name") for number in range(3)]
        await archive.store(scope, logged([*turns(40, (CANARY + " {}").format), event(word="canary-event")]))
        await archive.store(other, logged(turns(40, (KEPT + " {}").format)))
        await archive.store(scope, logged(long, start=50))
        await run(url, "ANALYZE")
        for word in (CANARY, "canary-name", "canary-event"):
            assert await files_with(url, word) != []
        selection = Selection("all") if what == "all" else Selection("session", session_id="s1")
        async with asyncio.timeout(5):
            assert await archive.erase(scope, selection) == 44
        await gone(url, "canary")
        if what == "all":
            await gone(url, "15550107777")
        assert await files_with(url, KEPT) != []
        assert len(await archive.read(other, after=0, limit=99)) == 40
        assert await archive.beyond_reach() == []


@pytest.mark.promise("P-erased")
async def test_P_erased_a_process_that_ends_right_after_an_erasure_cleans_up_first(url: str) -> None:
    scope = new_scope()
    async with opened(url) as archive:
        await archive.store(scope, logged(turns(40, (CANARY + " {}").format)))
        await archive.erase(scope, Selection("all"))
    assert await files_with(url, CANARY) == []


@pytest.mark.promise("P-erased")
async def test_P_erased_an_open_finishes_what_a_killed_process_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = new_scope()
    with monkeypatch.context() as patch:
        patch.setattr(Vacuum, "soon", lambda _: None)  # as if it had been killed before
        async with opened(url) as archive:
            await archive.store(scope, logged(turns(40, (CANARY + " {}").format)))
            await archive.erase(scope, Selection("all", through=position(99)))
    assert await files_with(url, CANARY) != []
    async with opened(url):
        await gone(url, CANARY)


@pytest.mark.promise("P-erased")
async def test_P_erased_a_reader_in_the_way_only_delays_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "VACUUM_PAUSE_S", 0.05)
    monkeypatch.setattr(vacuum, "VACUUM_LOCK_S", 0.05)
    scope = new_scope()
    engine = create_async_engine(url, poolclass=NullPool)
    async with opened(url) as archive:
        await archive.store(scope, logged(turns(40, (CANARY + " {}").format)))
        async with engine.connect() as reader:
            await reader.execute(sa.text("SELECT count(*) FROM conversation_entries"))
            await archive.erase(scope, Selection("all"))
            await archive.store(scope, logged(turns(1, "later {}".format), start=99))
            assert len(await archive.read(scope, after=0, limit=9)) == 1
            assert await files_with(url, CANARY) != []
        await gone(url, CANARY)
    await engine.dispose()


async def test_a_table_that_is_large_or_of_somebody_else_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = new_scope()
    async with opened(url) as archive:
        assert await archive.beyond_reach() == []
        monkeypatch.setattr(vacuum, "VACUUM_FULL_BYTES_MAX", 0)
        told = await archive.beyond_reach()
        assert any("conversation_entries, which is large" in line for line in told)
        await archive.store(scope, logged(turns(1)))
        await archive.erase(scope, Selection("all"))  # a plain VACUUM, which fails for nothing
    role = f"guest_{scope.org_id}"
    grants = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
    sequences = f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"
    await run(url, f"CREATE ROLE {role} LOGIN PASSWORD 'guest'", grants, sequences)
    try:
        guest = sa.make_url(url).set(username=role, password="guest").render_as_string(hide_password=False)
        async with opened(guest) as archive:
            told = await archive.beyond_reach()
            assert any("conversation_entries" in line and "doesn't own it" in line for line in told)
            await archive.store(scope, logged(turns(1), start=2))
            assert await archive.erase(scope, Selection("all")) == 1
    finally:
        await run(url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
