"""The SQL archive by itself: its file, its migrations, its errors, and how it begins and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from memory.errors import DataDirectoryUnusable, DataTooNew, StoreFault, StoreUnavailable
from memory.models import Scope
from memory.ports import Selection
from memory.stores import database as database_module
from memory.stores import sql
from memory.stores.database import Database
from memory.stores.migrate import MIGRATIONS, migrate
from memory.stores.schema import REVISION, metadata
from memory.stores.sql import SqlArchive
from tests.support import archives, postgres
from tests.support.archives import entry, event, logged, new_scope, opened, position, sqlite_url, turns


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield sqlite_url(data_dir)
        return
    with archives.fresh_database(request.getfixturevalue("server")) as fresh:
        yield fresh


async def count(archive: SqlArchive, scope: Scope) -> int:
    return len(await archive.read(scope, after=0, limit=10_000))


async def execute(url: str, statement: str) -> None:
    database = Database(url, pooled=False)
    async with database.writing(5) as connection:
        await connection.execute(sa.text(statement))
    await database.aclose()


# -- migrations


def test_the_schema_names_the_newest_migration() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == REVISION


async def test_migrations_and_schema_agree(url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    def difference(connection: sa.Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, metadata))

    async with opened(url):
        pass
    database = Database(url, pooled=False)
    async with database.reading() as connection:
        assert await connection.run_sync(difference) == []
        tables = await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names())
    await database.aclose()
    assert {"conversations", "conversation_entries", "conversation_events", "erasures", "users"} <= set(tables)


async def test_down_and_up_again_with_data(url: str) -> None:
    scope = new_scope()
    async with opened(url) as archive:
        await archive.store(scope, logged([*turns(3), event()]))
        await archive.erase(scope, Selection("session", session_id="s9", through=position(2)))
    await asyncio.to_thread(migrate, url, "base")
    database = Database(url, pooled=False)
    async with database.reading() as connection:
        assert await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()) == ["alembic_version"]
    await database.aclose()
    async with opened(url) as archive:
        assert await count(archive, scope) == 0
        assert await archive.store(scope, logged(turns(2))) == 2


async def test_data_survives_reopening(url: str) -> None:
    scope = new_scope()
    async with opened(url) as archive:
        await archive.store(scope, logged(turns(3)))
    async with opened(url) as archive:
        assert await count(archive, scope) == 3
        assert await archive.store(scope, logged(turns(1, "other {}".format), start=4)) == 1


async def test_a_newer_database_is_refused_with_the_fix(url: str) -> None:
    async with opened(url):
        pass
    await execute(url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DataTooNew, match="Upgrade livekit-unified-memory"):
        await SqlArchive.open(url)


OPEN = """
import asyncio, sys
from memory.stores.sql import SqlArchive

async def main():
    archive = await SqlArchive.open(sys.argv[1])
    print("alembic" in sys.modules)
    if "--forget" not in sys.argv:
        await archive.aclose()

sys.stdin.readline()
asyncio.run(main())
"""


def run_open(url: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", OPEN, url, *words]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_processes_that_open_a_new_database_at_once_do_not_collide(url: str) -> None:
    children = [run_open(url) for _ in range(3)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    results = [(child.communicate(timeout=60), child.returncode) for child in children]
    assert [(code, errors) for (_, errors), code in results] == [(0, "")] * 3


async def test_a_database_of_this_version_is_opened_without_alembic(url: str) -> None:
    async with opened(url):
        pass
    child = run_open(url)
    output, errors = await asyncio.to_thread(child.communicate, "\n", 60)
    assert (output, errors, child.returncode) == ("False\n", "", 0)


# -- how it ends


async def test_after_aclose_no_thread_is_left(url: str) -> None:
    before = set(threading.enumerate())
    archive = await SqlArchive.open(url)
    await asyncio.gather(*(archive.store(new_scope(), logged(turns(3))) for _ in range(6)))
    await archive.aclose()
    await archive.aclose()
    left = [thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("asyncio_")]
    for thread in left:
        await asyncio.to_thread(thread.join, 5)
    assert [thread.name for thread in left if thread.is_alive()] == []


def test_a_program_that_forgets_to_close_still_ends(url: str) -> None:
    child = run_open(url, "--forget")
    child.communicate("\n", timeout=60)
    assert child.returncode == 0


# -- SQLite's files


def files_with(directory: Path, text: str) -> list[str]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in found)
    return [path.name for path in found if text.encode() in path.read_bytes()]


@pytest.mark.promise("P-erased")
async def test_P_erased_no_file_holds_the_text_or_the_id(data_dir: Path) -> None:
    scope = new_scope(user_id="+15550107777")
    async with opened(sqlite_url(data_dir)) as archive:
        said = [entry(f"canary-text {n} " * 400, session="canary-session", name="canary-name") for n in range(40)]
        await archive.store(scope, logged([*said, event(session="canary-session", word="canary-event")]))
        await archive.store(new_scope(user_id="bystander"), logged([entry("kept-text")]))
        for word in ("canary-text", "canary-session", "canary-name", "canary-event", "15550107777"):
            assert files_with(data_dir, word) != []
        await archive.erase(scope, Selection("all", through=position(99)))
        for word in ("canary", "15550107777"):
            assert files_with(data_dir, word) == []
        assert files_with(data_dir, "kept-text") != []
        # a late store, and asking, do not bring the id back
        assert await archive.store(scope, logged(said)) == 0
        assert await archive.read(scope, after=0, limit=1) == []
        assert files_with(data_dir, "15550107777") == []
    assert files_with(data_dir, "canary") == []


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize(
    "selection",
    [Selection("session", session_id="s1"), Selection("since", since=archives.NOON)],
    ids=["session", "since"],
)
async def test_P_erased_a_partial_erasure_leaves_nothing_in_the_files(data_dir: Path, selection: Selection) -> None:
    scope = new_scope()
    async with opened(sqlite_url(data_dir)) as archive:
        early = entry("kept-text", session="s0", minute=-60)
        await archive.store(scope, logged([early, *turns(300, "canary-text {}".format)]))
        await archive.erase(scope, selection)
        assert files_with(data_dir, "canary") == []
        assert files_with(data_dir, "kept-text") != []


@pytest.mark.promise("P-erased")
async def test_P_erased_a_reader_in_the_way_only_delays_the_scrubbing(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_SCRUB_RETRY_S", 0.01)
    scope = new_scope()
    async with opened(sqlite_url(data_dir)) as archive:
        await archive.store(scope, logged([entry("canary-text")]))
        with contextlib.closing(sqlite3.connect(data_dir / "memory.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM conversation_entries").fetchone() == (1,)
            assert await archive.erase(scope, Selection("all", through=position(1))) == 1
            assert files_with(data_dir, "canary") != []
            assert await archive.read(scope, after=0, limit=1) == []
            reader.execute("COMMIT")
        async with asyncio.timeout(10):
            while files_with(data_dir, "canary"):
                await asyncio.sleep(0.01)


@pytest.mark.promise("P-erased")
async def test_P_erased_an_open_finishes_what_a_killed_process_left(data_dir: Path) -> None:
    scope = new_scope()
    async with opened(sqlite_url(data_dir)) as archive:
        await archive.store(scope, logged([entry("canary-text")]))
    # The process dies between the commit of the erasure and the cutting of the log.
    script = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA secure_delete=ON');"
        "c.execute('UPDATE users SET position = ?', ('canary-text',)); c.commit();"
        "c.execute('UPDATE users SET position = ?', ('',)); c.commit(); os._exit(9)"
    )
    command = [sys.executable, "-c", script, str(data_dir / "memory.db")]
    assert (await asyncio.to_thread(subprocess.run, command, check=False)).returncode == 9
    assert "memory.db-wal" in files_with(data_dir, "canary")
    async with opened(sqlite_url(data_dir)):
        assert "memory.db-wal" not in files_with(data_dir, "canary")


async def test_the_files_are_the_owners_alone(data_dir: Path) -> None:
    path = data_dir / "memory.db"
    path.touch(0o644)
    async with opened(sqlite_url(data_dir)) as archive:
        await archive.store(new_scope(), logged(turns(1)))
        modes = {
            file.name: file.stat().st_mode & 0o777 for file in data_dir.iterdir() if file.name.startswith("memory")
        }
    assert set(modes) == {"memory.db", "memory.db-wal", "memory.db-shm"}
    assert set(modes.values()) == {0o600}


async def test_a_place_that_is_not_there_is_refused_with_the_fix(data_dir: Path) -> None:
    with pytest.raises(DataDirectoryUnusable, match="VOICEASSIST_DATA_DIR"):
        await SqlArchive.open(sqlite_url(data_dir / "missing"))


async def test_a_file_that_is_no_database_is_refused(data_dir: Path) -> None:
    (data_dir / "memory.db").write_bytes(b"something else entirely" * 100)
    with pytest.raises(StoreFault, match="no database"):
        await SqlArchive.open(sqlite_url(data_dir))


@pytest.mark.parametrize("url", ["sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:", "nonsense"])
async def test_a_url_that_names_no_file_is_refused_with_the_fix(url: str) -> None:
    with pytest.raises(StoreFault, match="DATABASE_URL"):
        await SqlArchive.open(url)


# -- all or nothing


async def trap(url: str, word: str) -> None:
    """From now on the database refuses entries whose content is ``word``."""
    if url.startswith("sqlite"):
        await execute(
            url,
            f"CREATE TRIGGER trap BEFORE INSERT ON conversation_entries WHEN NEW.content = '{word}' "
            "BEGIN SELECT RAISE(ABORT, 'trap'); END",
        )
    else:
        await execute(url, f"ALTER TABLE conversation_entries ADD CONSTRAINT trap CHECK (content <> '{word}')")


async def test_a_batch_that_fails_in_its_midst_stores_nothing(url: str) -> None:
    scope = new_scope()
    async with opened(url) as archive:
        await trap(url, "turn 250")
        with pytest.raises(StoreFault) as raised:
            await archive.store(scope, logged(turns(500)))
        assert "turn 250" not in str(raised.value)
        assert raised.value.__suppress_context__
        assert raised.value.__cause__ is None
        assert await count(archive, scope) == 0
        assert await archive.position(scope) == ""
        assert await archive.sessions(scope, limit=1) == []
        assert await archive.store(scope, logged(turns(250))) == 250


async def test_a_store_cancelled_at_any_point_stores_all_or_nothing(url: str) -> None:
    scope = new_scope()
    before = set(threading.enumerate())
    async with opened(url) as archive:
        for number, steps in enumerate([*range(1, 40), *(round(40 * 1.3**n) for n in range(20))]):
            batch = logged(turns(5, f"{steps} {{}}".format), start=1 + 5 * number)
            task = asyncio.create_task(archive.store(scope, batch))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await count(archive, scope) % 5 == 0
            await archive.store(scope, batch)
            assert await count(archive, scope) == 5 * number + 5
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("asyncio_"):
            await asyncio.to_thread(thread.join, 5)
            assert not thread.is_alive()


# -- a store that is away


async def test_a_locked_file_is_unavailable_and_works_again_when_it_is_free(data_dir: Path) -> None:
    scope = new_scope()
    async with opened(sqlite_url(data_dir)) as archive:
        await archive.store(scope, logged(turns(1)))
        with contextlib.closing(sqlite3.connect(data_dir / "memory.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="BUSY"):
                await archive.store(scope, logged(turns(1), start=2))
            assert await count(archive, scope) == 1  # readers are not held up
            other.execute("ROLLBACK")
        assert await archive.store(scope, logged(turns(1), start=2)) == 1


ROOT = Path(__file__).parents[3]

FULL = """
import asyncio, resource, signal, sys
from memory.errors import StoreUnavailable
from memory.stores.sql import SqlArchive
from tests.support.archives import logged, new_scope, turns

async def main():
    archive = await SqlArchive.open(sys.argv[1])
    scope = new_scope()
    await archive.store(scope, logged(turns(5)))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        await archive.store(scope, logged(turns(100, lambda n: str(n) * 5000), start=6))
    except StoreUnavailable:
        print("unavailable")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(len(await archive.read(scope, after=0, limit=999)))
    print(await archive.store(scope, logged(turns(100, lambda n: str(n) * 5000), start=6)))
    await archive.aclose()

asyncio.run(main())
"""


def test_a_full_disk_is_unavailable_and_stores_nothing(data_dir: Path) -> None:
    command = [sys.executable, "-c", FULL, sqlite_url(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert (done.stdout.split(), done.stderr) == (["unavailable", "5", "100"], "")


async def test_a_user_locked_by_somebody_else_is_unavailable_after_the_deadline(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = new_scope()
    with archives.fresh_database(server) as url:
        async with opened(url) as archive:
            await archive.store(scope, logged(turns(1)))
            other = Database(url, pooled=False)
            monkeypatch.setattr(sql, "ARCHIVE_STORE_TIMEOUT_S", 0.3)
            async with other.writing(10) as connection:
                await connection.execute(sa.text("SELECT * FROM users FOR UPDATE"))
                for _ in range(6):  # more often than there are connections
                    with pytest.raises(StoreUnavailable, match=r"0\.3 s"):
                        await archive.store(scope, logged(turns(1), start=2))
                assert await count(archive, scope) == 1
            await other.aclose()
            monkeypatch.setattr(sql, "ARCHIVE_STORE_TIMEOUT_S", 5.0)
            assert await archive.store(scope, logged(turns(1), start=2)) == 1


async def test_a_server_that_went_away_is_unavailable_and_used_again_when_it_is_back() -> None:
    scope = new_scope()
    with postgres.stoppable() as own:
        async with opened(own.url()) as archive:
            await archive.store(scope, logged(turns(1)))
            await asyncio.to_thread(own.stop)
            with pytest.raises(StoreUnavailable):
                await archive.store(scope, logged(turns(1), start=2))
            with pytest.raises(StoreUnavailable):
                await archive.read(scope, after=0, limit=1)
            with pytest.raises(StoreUnavailable):
                await SqlArchive.open(own.url())
            await asyncio.to_thread(own.start)
            assert await archive.store(scope, logged(turns(1), start=2)) == 1
            assert await count(archive, scope) == 2


async def test_a_database_that_is_not_there_or_not_utf8_is_refused_with_the_fix(server: str) -> None:
    with pytest.raises(StoreFault, match="create the database"):
        await SqlArchive.open(sa.make_url(server).set(database="nobody_made_it").render_as_string(hide_password=False))
    with archives.fresh_database(server, encoding="LATIN1") as url, pytest.raises(StoreFault, match="UTF8"):
        await SqlArchive.open(url)


async def test_sslmode_of_providers_urls_is_understood(server: str) -> None:
    with archives.fresh_database(server) as url:
        parsed = sa.make_url(url)
        async with opened(parsed.update_query_dict({"sslmode": "disable"}).render_as_string(hide_password=False)):
            pass
        with pytest.raises(StoreFault, match="DATABASE_URL"):
            await SqlArchive.open(parsed.update_query_dict({"nonsense": "1"}).render_as_string(hide_password=False))


async def test_a_selection_that_leaves_open_what_is_meant_is_refused(data_dir: Path) -> None:
    async with opened(sqlite_url(data_dir)) as archive:
        for selection in (Selection("session"), Selection("since")):
            with pytest.raises(ValueError, match="has to say which"):
                await archive.erase(new_scope(), selection)


def test_opening_imports_nothing_of_the_graph_or_the_models() -> None:
    names = ("numpy", "alembic", "asyncpg", "redis")
    script = f"import memory.stores.sql, sys; print([name for name in {names} if name in sys.modules])"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
    assert os.path.exists(MIGRATIONS / "env.py")
