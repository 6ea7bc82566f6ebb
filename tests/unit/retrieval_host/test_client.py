"""The client against a host on a real socket whose answers the test gives, with a clock the test moves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from memory.errors import HostUnavailable, StoreUnavailable
from memory.hosting import HostSpec, HostUse, serving
from memory.limits import HOST_PING_S, HOST_QUEUE_MAX, HOST_RETRY_S_MAX, RECALL_QUERY_CHARS_MAX
from memory.models import Passage, Recall
from memory.ports import Selection
from memory.retrieval.client import HostRetriever
from memory.retrieval.protocol import Reply, Request, read_frame
from memory.retrieval.snapshot_files import SnapshotHeader, SnapshotStore, snapshot_directory
from tests.support.frames import frame
from tests.support.recalls import NOON, ManualClock, scope_of, texts

ALL = Selection("all")


def found(*contents: str) -> Recall:
    return Recall(
        passages=tuple(Passage(id="p", session_id="s", timestamp=NOON, role="user", text=each) for each in contents)
    )


Answer = Callable[[Request], Awaitable[bytes | None]]


@dataclass
class FakeHost:
    """Listens where a host would. ``answer`` gives the frame for a request, or ``None`` for silence."""

    spec: HostSpec
    answer: Answer
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    silent: bool = False
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        await self._stack.enter_async_context(serving(self.spec, self._talk))

    async def stop(self) -> None:
        await self._stack.aclose()
        self.spec.socket.unlink(missing_ok=True)

    def of(self, op: str) -> list[Request]:
        return [request for request in self.requests if request.op == op]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        answering: set[asyncio.Task[None]] = set()
        try:
            while (body := await read_frame(reader)) is not None:
                request = Request.parse(body)
                self.requests.append(request)
                answering.add(asyncio.create_task(self._reply(request, writer)))
        finally:
            for task in answering:
                task.cancel()

    async def _reply(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if self.silent:
            return
        frame = Reply(id=request.id).frame() if request.op == "ping" else await self.answer(request)
        if frame is not None:
            writer.write(frame)


class FakeUse(HostUse):
    """A use whose host is started by the test: ``ensure`` fails while ``up`` is not set."""

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self.ensured = 0
        self.released = False
        self.start: Callable[[], Awaitable[None]] | None = None

    async def ensure(self, *, timeout_s: float = 1.0) -> Path:
        self.ensured += 1
        if not self.spec.socket.exists():
            if self.start is None:
                raise HostUnavailable("It can't be started here.")
            await self.start()
        return self.spec.socket

    def release(self) -> None:
        self.released = True
        super().release()


@dataclass
class Line:
    host: FakeHost
    use: FakeUse
    clock: ManualClock
    client: HostRetriever

    def recall(self, query: str, *, user: str = "ana", budget_ms: float = 300.0) -> asyncio.Task[Recall]:
        return asyncio.create_task(self.client.recall(scope_of(user), query, limit=8, budget_ms=budget_ms))


async def echo(request: Request) -> bytes | None:
    """Answers a recall with its own query, and nothing whose query says so."""
    if request.query.startswith("silence"):
        return None
    if request.op == "recall":
        return Reply(id=request.id, recall=found(request.query)).frame()
    if request.op == "profile":
        return Reply(id=request.id, recall=Recall(state="now")).frame()
    return Reply(id=request.id, erased=5, stats={"users": 1}).frame()


@pytest.fixture
async def line(data_dir: Path) -> AsyncIterator[Line]:
    spec = HostSpec.module("recall", data_dir, "memory", "host")
    host, use, clock = FakeHost(spec, echo), FakeUse(spec), ManualClock()
    await host.start()
    client = HostRetriever(use, clock=clock)
    yield Line(host, use, clock, client)
    await client.aclose()
    await host.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that takes real input and output, but no time of the test's clock."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def failing(task: asyncio.Task[Recall]) -> HostUnavailable:
    with pytest.raises(HostUnavailable) as failure:
        async with asyncio.timeout(10):
            await task
    return failure.value


async def test_recall_goes_over_one_connection_and_holds_the_host(line: Line) -> None:
    answers = await asyncio.gather(*(line.recall(f"question {number}") for number in range(30)))
    assert [texts(answer) for answer in answers] == [[f"question {number}"] for number in range(30)]
    assert line.host.connections == 1
    assert line.use.ensured == 1


async def test_a_request_is_on_its_way_before_its_recall_is_waited_for(line: Line) -> None:
    await line.recall("warm up")
    waiting = line.client.recall(scope_of("ana"), "a question", limit=8, budget_ms=300.0)
    await until(lambda: len(line.host.of("recall")) == 2)
    assert texts(await waiting) == ["a question"]


async def test_recalls_that_are_cancelled_before_their_first_step_keep_no_place(line: Line) -> None:
    await line.recall("warm up")
    for _ in range(HOST_QUEUE_MAX + 1):
        line.recall("nobody waits for it").cancel()
        await asyncio.sleep(0)
    await until(lambda: len(line.host.of("recall")) == HOST_QUEUE_MAX + 2)
    assert texts(await line.recall("a question")) == ["a question"]


async def test_replies_find_their_requests_in_any_order(line: Line) -> None:
    gates = {f"question {number}": asyncio.Event() for number in range(5)}

    async def gated(request: Request) -> bytes | None:
        await gates[request.query].wait()
        return await echo(request)

    line.host.answer = gated
    tasks = {query: line.recall(query) for query in gates}
    await until(lambda: len(line.host.of("recall")) == 5)
    for query in reversed(list(gates)):
        gates[query].set()
        assert texts(await tasks[query]) == [query]


async def test_the_host_is_told_what_is_left_of_the_budget_less_the_way_back(line: Line) -> None:
    await line.recall("warm up")
    await line.recall("a question", budget_ms=300)
    await line.recall("a question", budget_ms=10)
    budgets = [request.budget_ms for request in line.host.of("recall")]
    assert budgets[1:] == [pytest.approx(295), pytest.approx(9)]


async def test_long_queries_are_cut_and_empty_ones_are_not_sent(line: Line) -> None:
    await line.recall("word " * RECALL_QUERY_CHARS_MAX)
    assert len(line.host.of("recall")[0].query) == RECALL_QUERY_CHARS_MAX
    assert await line.recall("  ") == Recall()
    assert await line.client.recall(scope_of(), "x", limit=0, budget_ms=300) == Recall()
    assert len(line.host.of("recall")) == 1


@pytest.mark.case("L10")
@pytest.mark.promise("P-silent")
async def test_L10_P_silent_a_recall_without_an_answer_ends_at_its_budget(line: Line) -> None:
    await line.recall("warm up")
    before = asyncio.all_tasks()
    task = line.recall("silence", budget_ms=300)
    await until(lambda: len(line.host.of("recall")) == 2)
    await line.clock.advance(0.299)
    assert not task.done()
    await line.clock.advance(0.001)
    await failing(task)
    await until(lambda: asyncio.all_tasks() <= before | {t for t in asyncio.all_tasks() if "_reply" in repr(t)})


async def test_one_slow_recall_is_no_outage(line: Line) -> None:
    await line.recall("warm up")
    slow = line.recall("silence", budget_ms=100)
    await until(lambda: len(line.host.of("recall")) == 2)
    await line.clock.advance(0.1)
    await failing(slow)
    await until(lambda: len(line.host.of("ping")) == 2)
    await until(lambda: not line.client._away)
    assert texts(await line.recall("next")) == ["next"]
    assert line.host.connections == 1


@pytest.mark.promise("P-silent")
async def test_P_silent_an_outage_costs_one_deadline_not_one_a_turn_and_ends_by_itself(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    await line.recall("warm up")
    line.host.silent = True
    first = line.recall("hello", budget_ms=300)
    await until(lambda: len(line.host.of("recall")) == 2)
    await line.clock.advance(0.3)
    await failing(first)
    for _ in range(20):
        await failing(line.recall("hello again"))  # the clock stands still: none of them waits
    assert len(line.host.of("recall")) == 2
    await line.clock.advance(HOST_PING_S)  # the ping is not answered either: a new connection is tried
    line.host.silent = False
    async with asyncio.timeout(10):
        while line.client._away:
            await line.clock.advance(HOST_RETRY_S_MAX)
            await asyncio.sleep(0.001)
    assert texts(await line.recall("hello again")) == ["hello again"]
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


@pytest.mark.promise("P-silent")
async def test_P_silent_starting_a_host_costs_no_more_than_the_budget_and_goes_on_behind(line: Line) -> None:
    await line.host.stop()
    starting, go_on = asyncio.Event(), asyncio.Event()

    async def slow_start() -> None:
        starting.set()
        await go_on.wait()
        line.host._stack = AsyncExitStack()
        await line.host.start()

    line.use.start = slow_start
    task = line.recall("hello", budget_ms=200)
    await starting.wait()
    await line.clock.advance(0.2)
    await failing(task)
    await failing(line.recall("hello"))
    assert line.use.ensured == 1
    go_on.set()
    await until(lambda: not line.client._away)
    assert texts(await line.recall("hello")) == ["hello"]


async def test_a_host_that_can_not_be_started_is_tried_with_growing_pauses(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    await line.host.stop()
    task = line.recall("hello")
    for _ in range(60):
        await line.clock.advance(1)
    await failing(task)
    assert 5 <= line.use.ensured <= 20
    assert "can't be started here" in caplog.text
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_a_host_that_dies_fails_those_who_wait_at_once_and_is_started_again(line: Line) -> None:
    await line.recall("warm up")
    task = line.recall("silence")
    await until(lambda: len(line.host.of("recall")) == 2)
    restarted = 0

    async def restart() -> None:
        nonlocal restarted
        restarted += 1
        line.host._stack = AsyncExitStack()
        await line.host.start()

    line.use.start = restart
    await line.host.stop()
    await failing(task)
    await until(lambda: restarted == 1)
    assert texts(await line.recall("hello")) == ["hello"]


async def test_a_late_reply_is_dropped_and_never_another_ones(line: Line) -> None:
    await line.recall("warm up")
    late = asyncio.Event()

    async def slow(request: Request) -> bytes | None:
        if request.query == "first":
            await late.wait()
        return await echo(request)

    line.host.answer = slow
    task = line.recall("first", budget_ms=50)
    await until(lambda: len(line.host.of("recall")) == 2)
    await line.clock.advance(0.05)
    await failing(task)
    await until(lambda: not line.client._away)
    late.set()
    assert texts(await line.recall("second")) == ["second"]
    assert texts(await line.recall("third")) == ["third"]


@pytest.mark.case("L22")
@pytest.mark.promise("P-isolated")
async def test_L22_P_isolated_cancelled_recalls_leave_nothing_behind(line: Line) -> None:
    await line.recall("warm up")
    before = asyncio.all_tasks()

    async def as_user(request: Request) -> bytes | None:
        assert request.scope is not None
        await asyncio.sleep(0)
        return Reply(id=request.id, recall=found(request.scope.user_id)).frame()

    line.host.answer = as_user
    for round_number in range(20):
        tasks = [line.recall("who am I?", user=f"user {number}") for number in range(50)]
        for _ in range(round_number % 5):
            await asyncio.sleep(0)
        for task in tasks[round_number % 3 :: 3]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for number, answer in enumerate(answers):
            if isinstance(answer, asyncio.CancelledError):
                assert number % 3 == round_number % 3, "another's cancellation"
            else:
                assert texts(answer) == [f"user {number}"]  # type: ignore[arg-type]
    link = line.client._link
    assert link is not None
    assert link._waiting == {}
    await until(lambda: {task for task in asyncio.all_tasks() - before if "_reply" not in repr(task)} == set())


async def test_a_host_that_refuses_or_talks_nonsense_is_told_as_unavailable(line: Line) -> None:
    async def refuse(request: Request) -> bytes | None:
        if request.query.startswith("nonsense"):
            return frame(id=request.id, recall=7) if request.query == "nonsense" else Reply(id=request.id).frame()
        return Reply(id=request.id, error="too many requests at once").frame()

    line.host.answer = refuse
    assert "too many requests" in str(await failing(line.recall("hello")))
    assert "another version" in str(await failing(line.recall("nonsense without a recall")))
    assert line.host.connections == 1
    assert "another version" in str(await failing(line.recall("nonsense")))
    line.host.answer = echo
    await until(lambda: line.host.connections == 2)
    assert texts(await line.recall("hello")) == ["hello"]


async def test_ids_with_what_no_text_holds_are_told_as_unavailable_when_awaited(line: Line) -> None:
    await line.recall("warm up")
    asking = line.client.recall(scope_of(), "hello", limit=8, budget_ms=300.0, exclude_ids=frozenset({"\ud800"}))
    with pytest.raises(HostUnavailable, match="can't be asked this"):
        await asking
    assert texts(await line.recall("hello")) == ["hello"]


async def test_a_query_with_what_no_text_holds_is_asked_all_the_same(line: Line) -> None:
    assert texts(await line.recall("a\x00b \ud800 c")) == ["ab \ufffd c"]


async def test_a_stream_that_is_no_protocol_is_given_up_and_the_host_found_again(line: Line) -> None:
    await line.recall("warm up")
    line.host.writers[0].write(b"HTTP/1.1 200 OK\r\n\r\n")
    await until(lambda: line.host.connections == 2)
    assert texts(await line.recall("hello")) == ["hello"]


async def test_warming_waits_for_the_host_and_never_raises(line: Line) -> None:
    await line.client.warm(scope_of())
    assert [request.scope for request in line.host.of("warm")] == [scope_of()]
    await line.host.stop()
    task = asyncio.create_task(line.client.warm(scope_of()))
    for _ in range(60):
        await line.clock.advance(1)
    await task


async def test_a_profile_is_asked_for_by_name_and_waits_for_a_host_that_is_being_started(line: Line) -> None:
    await line.host.stop()
    asking = asyncio.create_task(line.client.profile(scope_of(), name="x" * 9_000, limit=7, budget_ms=400))
    await line.clock.advance(1)
    await line.host.start()
    async with asyncio.timeout(10):
        while not line.host.of("profile"):
            await line.clock.advance(0.1)
            await asyncio.sleep(0.001)
    (request,) = line.host.of("profile")
    assert (request.scope, request.limit, request.budget_ms) == (scope_of(), 7, 400)
    assert request.query == "x" * RECALL_QUERY_CHARS_MAX
    assert await asking == Recall(state="now")


@pytest.mark.promise("P-silent")
async def test_P_silent_a_profile_that_gets_no_answer_ends_and_keeps_no_turn_from_its_recall(line: Line) -> None:
    await line.recall("hello")
    line.host.silent = True
    asking = asyncio.create_task(line.client.profile(scope_of(), limit=7, budget_ms=400))
    await until(lambda: bool(line.host.of("profile")))
    await line.clock.advance(0.4 + HOST_PING_S)
    with pytest.raises(HostUnavailable, match="did not answer"):
        await asking
    line.host.silent = False
    assert texts(await line.recall("hello again")) == ["hello again"]


@pytest.mark.promise("P-erased")
async def test_P_erased_erase_is_the_hosts_to_do_and_keeps_none_alive(line: Line) -> None:
    assert await line.client.erase(scope_of(), ALL) == 5
    assert line.host.of("erase")[0].selection == ALL
    assert line.use.ensured == 0
    await line.recall("hello")
    assert await line.client.erase(scope_of(), ALL) == 5
    assert line.host.connections == 2


@pytest.mark.promise("P-erased")
@pytest.mark.parametrize("outage", ["away", "silent"])
async def test_P_erased_erase_removes_the_snapshot_itself_where_no_host_answers(line: Line, outage: str) -> None:
    store = SnapshotStore(snapshot_directory(line.use.spec.data_dir))
    await store.write(SnapshotHeader(scope_of(), "", 0, "", 0, ""), b"x", still_wanted=lambda: True)
    await store.write(SnapshotHeader(scope_of("ben"), "", 0, "", 0, ""), b"x", still_wanted=lambda: True)
    if outage == "away":
        await line.host.stop()
    line.host.silent = True
    task = asyncio.create_task(line.client.erase(scope_of(), ALL))
    await until(lambda: outage == "away" or len(line.host.of("erase")) == 1)
    await line.clock.advance(60)
    assert await task == 0
    assert [header.scope.user_id for header in await store.headers()] == ["ben"]


@pytest.mark.promise("P-erased")
async def test_P_erased_an_erasure_that_can_not_be_done_is_not_told_as_done(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("memory.retrieval.client.remove_snapshot", refused)
    await line.host.stop()
    with pytest.raises(StoreUnavailable, match="Read-only"):
        await line.client.erase(scope_of(), ALL)


async def test_stats_come_from_a_running_host_only(line: Line) -> None:
    assert await line.client.stats() == {"users": 1}
    await line.host.stop()
    with pytest.raises(HostUnavailable):
        await line.client.stats()
    assert line.use.ensured == 0


async def test_closing_ends_everything_and_releases_the_host(line: Line) -> None:
    before = asyncio.all_tasks()
    await line.host.stop()
    await failing(line.recall("hello", budget_ms=0))
    await line.client.aclose()
    await line.client.aclose()
    assert line.use.released
    await until(lambda: asyncio.all_tasks() <= before)
    assert "closed" in str(await failing(line.recall("hello")))


def test_a_jobs_process_loads_nothing_heavy_with_it() -> None:
    code = (
        "import sys; import memory.retrieval.client, memory.retrieval.prefetch; "
        "heavy = {'numpy', 'sqlalchemy', 'Stemmer', 'onnxruntime', 'redis', 'livekit'} & set(sys.modules); "
        "print(*sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
