"""Every bound of the memory in one place, units last. Relations between them are checked by ``check()`` at start."""

from __future__ import annotations

ENTRY_CONTENT_BYTES_MAX = 1_048_576  # one turn, UTF-8; about 17 hours of speech
ID_CHARS_MAX = 512
ENTRY_RETRIEVED_BYTES_MAX = 1_048_576  # an entry's retrieved passages and sources, UTF-8 of their JSON
EVENT_DATA_BYTES_MAX = 65_536
JSON_DEPTH_MAX = 32  # levels of an event's data or a source
LANGUAGE_CHARS_MAX = 35  # BCP 47: the longest tag registrars must accept (RFC 5646, 4.4.1)
DISPLAY_NAME_CHARS_MAX = 80

SESSION_TTL_S = 86_400  # the seeds' "24 hours", extended on use
SESSION_MESSAGES_DEFAULT = 50
SESSION_MESSAGES_MAX = 1_000  # kept per session in the session layer; older ones are in the archive
SESSION_EVENTS_MAX = 1_000
SESSION_READ_BYTES_MAX = 8_388_608  # of a session's entries or events in one read, as they are stored
WRITER_LEASE_S = 30  # a recorder that is silent for this long may be replaced by another
WRITER_HEARTBEAT_S = 10
CLOCK_SKEW_S = 300  # a timestamp further in the future than this is pulled back to now

STORE_TIMEOUT_S = 2.0  # one call to a store
RECORD_TIMEOUT_S = 5.0  # one attempt to record a turn, with its retries inside the client
RECORD_COURTESY_S = 0.03  # for so long what is to be stored waits for a recall under way
RECORD_QUEUE_MAX = 512  # turns of one session waiting to be recorded
RECORD_RETRY_S_MAX = 2.0
DURABLE_WAIT_S = 0.25  # how long the first audio frame waits for the user's turn to be durable
SHUTDOWN_FLUSH_S = 5.0

EMBEDDED_MEMORY_SHARE = 0.5  # of the memory there is, for the embedded server; a rewrite of its file may copy as much
EMBEDDED_BYTES_MIN = 268_435_456
LOG_FULL_SHARE = 0.95  # of Redis' maxmemory: as good as full, and /health says so
SPOOL_AFTER_S = 0.1  # a turn that the store has not taken for so long goes to the disk; later ones at once
SPOOL_RETRY_S = 2.0  # between attempts to use a spool that is full
SPOOL_BATCH = 64  # records written in one go
SPOOL_REPLAY = 16  # records stored in one go: an erasure waits for them
SPOOL_BYTES_MAX = 33_554_432  # of one session
SPOOL_RECORDS_MAX = 4_096  # of one session
SPOOL_TOTAL_BYTES_MAX = 1_073_741_824  # of one data directory; beyond it no further session spools
SPOOL_GATE_S = 0.5  # how long a turn waits for an erasure in the spool
SPOOL_ERASE_S = 10.0  # how long an erasure waits for turns that are being stored from the spool
SPOOL_UNBOUND_S = 300.0  # turns of nobody known wait so long for their session to go on and tell whose they are
SPOOL_SCAN_S = 5.0  # how often the recall host looks for spools that dead processes left

LOG_READ_MAX = 500  # records moved by one read of the log
LOG_READ_BYTES_MAX = 8_388_608  # and bytes of them, as they are stored; a larger record is read alone
ARCHIVE_READ_CHARS_MAX = 4_194_304  # of what was said, in one read of the archive
ARCHIVE_POLL_S = 0.25
ARCHIVE_POLL_IDLE_S = 1.0
ARCHIVE_BACKOFF_S_MAX = 15.0  # between attempts while a store is away
AWAY_IN_A_ROW = 2  # users, sessions or graphs for which a store is away: it is away for all
ARCHIVE_USERS_MAX = 64  # users moved in one round
ARCHIVE_OPEN_S = 5.0  # how long a recall host waits for its archive to open before it answers without
ARCHIVE_RETRY_S_MIN = 0.5  # for how long an archive that was away isn't asked again
ARCHIVE_RETRY_S_MAX = 5.0
ARCHIVE_PROBE_S = 0.4  # how long a recall host that is asked how it is waits for the archive
ARCHIVE_STORE_TIMEOUT_S = 10.0  # one batch into SQL, up to LOG_READ_MAX records
ERASE_TIMEOUT_S = 30.0  # one erasure in SQL: it may touch all of a user's rows
VACUUM_LOCK_S = 0.5  # how long a table of PostgreSQL is waited for, before it is written anew; others wait behind that
VACUUM_FULL_BYTES_MAX = 268_435_456  # of a table that is written anew: a few seconds in which nobody can use it
VACUUM_TABLE_S = 60.0
VACUUM_PAUSE_S = 2.0
VACUUM_TRIES = 30
VACUUM_CLOSE_S = 10.0
MIGRATE_TIMEOUT_S = 120.0  # a database brought to this version's schema, waiting for others included
SHARDS = 16  # hash tags over which users are spread (Redis Cluster: one script touches one slot)

RECALL_LIMIT = 8
RECALL_USERS_MAX = 256  # indexes a recall host holds at once
RECALL_TURNS_MAX = 200_000  # of one user, in memory
RECALL_QUERY_CHARS_MAX = 8_000  # of a query that are looked at
RECALL_WARM_S = 10.0  # how long warming a user may take
EMBED_BATCH_MAX = 8  # texts in one run of the embedder
EMBED_NEWEST_MAX = 4  # turns said just now whose vectors a recall makes along with the query's
EMBED_NEWEST_CHARS_MAX = 1_000  # of those turns together: longer ones wait until nobody does
EMBED_IDLE_BATCH = 2  # older turns at a time: a recall that comes meanwhile waits for no more than these
EMBED_WAITING_MAX = 2  # recalls waiting for the embedder; the next one goes by keywords alone
EMBED_PATIENCE_S = 0.25  # an embedder that is at one batch for longer is waited for by nobody
EMBED_RETRY_S_MAX = 60.0
HOST_NICE = -15  # of the recall host's process while a recall is under way
HOST_CROWD_PER_CORE = 2  # clients: with more a recall goes first; with fewer its own call would wait for it
RECALL_QUIET_S = 0.15  # after a recall the next one is likely: the host's other work waits for so long
RECALL_YIELD_S_MAX = 2.0  # of one round of that work, spent waiting for recalls to be over
FOLLOW_POLL_S = 0.5  # how often the logs of users now talking are looked at between recalls; of those who have
FOLLOW_POLL_S_MAX = 5.0  # been quiet, each time they have been so for twice as long, or after this time
FOLLOW_ACTIVE_S = 120.0  # for so long after their last recall
SNAPSHOT_TURNS_MIN = 32  # fewer new turns than these aren't worth a new snapshot
SNAPSHOT_QUIET_S = 10.0  # a user who has said nothing for so long gets one
SNAPSHOT_EVERY_S = 60.0  # between snapshots of a user who goes on
SNAPSHOT_KEEP_S = 30 * 86_400.0  # of users who don't come back; built anew if they do
SNAPSHOT_SWEEP_S = 20.0  # how often snapshots are checked against erasures made elsewhere
PREFETCH_INTERVAL_S = 0.12  # between starts of prefetches in one session
HOST_START_S = 20.0
HOST_PING_S = 1.0  # an answer to a ping that takes longer is none
HOST_ERASE_S = 5.0  # how long a host may take to drop a user; then it is told by the log's epoch instead
HOST_RETRY_S_MIN = 0.1
HOST_RETRY_S_MAX = 5.0
HOST_IDLE_S = 30.0  # a helper process ends when unused for this long
HOST_MESSAGE_BYTES_MAX = 16_777_216
HOST_QUEUE_MAX = 256

IDLE_S_DEFAULT = 60.0  # a session that is silent for so long is ingested
CHUNK_TOKENS_DEFAULT = 2_400  # of one episode: a 20-turn call is one
CHUNK_TURNS_MAX = 400  # handed to the cutter in one go
CHUNK_ANSWERS_BYTES_MAX = 1_048_576  # of an LLM's answers that are kept for a repetition
INGEST_SCAN_S = 5.0  # between looks for sessions that went quiet
INGEST_SESSIONS_MAX = 200  # cut in one look, so that a burst of ended sessions takes no memory
INGEST_USERS_MAX = 200  # handed to the task engine in one look
INGEST_CONCURRENCY = 4  # users ingested at once by one worker
INGEST_CHUNKS_MAX = 8  # of one user in one task; then others get their turn
INGEST_ATTEMPTS_MAX = 8  # faults of a chunk itself before it is given up on; an outage of a provider doesn't count
INGEST_BACKOFF_S = 2.0
INGEST_BACKOFF_S_MAX = 3_600.0
INGEST_TASK_S = 300.0  # one task at most
INGEST_REDELIVERY_S = 15.0  # a worker that is silent for this long is taken to be dead: its tasks are others'
INGEST_STOP_S = 6.0  # what is under way when a worker is told to stop; with its farewell below ten seconds
INGEST_OPEN_RETRY_S = 15.0  # between attempts to open the LLM, embedder and graph that facts need
INGEST_OPEN_PATIENCE_S = 300.0  # then digests are made without an LLM that can't be opened
IMPORT_LINE_BYTES_MAX = 16_777_216  # of a line of conversations that are brought in
IMPORT_BATCH = 500  # lines read, and appended to the logs, in one go
IMPORT_BATCH_BYTES_MAX = 8_388_608
IMPORT_LOG_MAX = 20_000  # turns that are in the logs before the archive has them
BREAKER_FAILURES = 3  # of a provider in a row: then nobody asks it for a while
BREAKER_OPEN_S = 15.0
BREAKER_OPEN_S_MAX = 600.0
LLM_TIMEOUT_S = 60.0
LLM_OUTPUT_TOKENS_MAX = 8_000
EMBED_REMOTE_TIMEOUT_S = 20.0
GRAPH_TIMEOUT_S = 3.0  # one query
GRAPH_SAVE_TIMEOUT_S = 5.0  # one patch, in a transaction of the archive
GRAPH_CHECK_S = 10.0  # the keyword leg's self-test, when the graph is opened for ingestion
GRAPH_RESTORE_BATCH = 200
GRAPH_ERASE_S = 10.0  # how long an erasure waits for the graph; then an ingestion worker brings it about
GRAPH_TODO_MAX = 200  # graphs that are brought up to SQL in one look
GRAPH_CANDIDATES = 10  # facts compared with a new one, of each kind of search
RELATED_FACTS_MAX = 2_000
FACTS_PER_CHUNK_MAX = 100
FACT_CHARS_MAX = 1_000
ENTITY_NAME_CHARS_MAX = 200
FACTS_MAX = 50_000  # of one user, in memory
FACTS_CHECK_S = 30.0  # between looks for facts of users now talking that nobody has announced
FACTS_RETRY_S_MAX = 15.0  # between attempts to read them while SQL is away
RECALL_FACTS = 6  # in one recall, besides the passages
PROFILE_LIMIT = 20  # facts of the profile at session start
PROFILE_BUDGET_MS = 1_000.0
KEY_MOMENTS_MAX = 5

# Variables by which libraries are told their threads: on a machine full of calls more of them only wait for each other.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Set before onnxruntime is imported: else it keeps a device id in the home directory, and sends its maker what it does.
ONNX_UNTOLD = ("ORT_DISABLE_TELEMETRY", "1")

BLOCK_TOKENS_DEFAULT = 600
CONTEXT_TOKENS_DEFAULT = 4_000
CONTEXT_PROTECTED_MESSAGES = 3
SUMMARY_TIMEOUT_S = 2.0
CHARS_PER_TOKEN = 4  # see context/budget.py for where this is used and where not


def check() -> None:
    """Check the relations between limits.

    Raises:
        AssertionError: a relation does not hold; only an edit of this file can cause it.
    """
    relations = {
        "a lease outlives two heartbeats": WRITER_LEASE_S > 2 * WRITER_HEARTBEAT_S,
        "a store call fits into an attempt to record": STORE_TIMEOUT_S < RECORD_TIMEOUT_S,
        "the default history fits into what is kept": SESSION_MESSAGES_DEFAULT <= SESSION_MESSAGES_MAX,
        "the block fits into the context": BLOCK_TOKENS_DEFAULT < CONTEXT_TOKENS_DEFAULT,
        "one entry fits into a message of a host": (ENTRY_CONTENT_BYTES_MAX + ENTRY_RETRIEVED_BYTES_MAX) * 8
        <= HOST_MESSAGE_BYTES_MAX,
        "a recall's batch fits into one run of the embedder": 1 + EMBED_NEWEST_MAX <= EMBED_BATCH_MAX,
        "an erasure made elsewhere is swept within a minute": SNAPSHOT_SWEEP_S * 2 <= 60,
        "a late turn is on disk before its reply is held up for it": SPOOL_AFTER_S * 2 <= DURABLE_WAIT_S,
        "one entry fits into a session's spool": (ENTRY_CONTENT_BYTES_MAX + ENTRY_RETRIEVED_BYTES_MAX) * 8
        <= SPOOL_BYTES_MAX,
        "a recall under way sends no turn to the disk": RECORD_COURTESY_S * 2 < SPOOL_AFTER_S,
        "an erasure waits for longer than an attempt to record takes": RECORD_TIMEOUT_S < SPOOL_ERASE_S,
        "an idle poll is no quicker than a busy one": ARCHIVE_POLL_S <= ARCHIVE_POLL_IDLE_S,
        "recalls that come one by one don't hold the host's other work back for good": RECALL_QUIET_S
        < RECALL_YIELD_S_MAX,
        "a patch is projected within the transaction's time": GRAPH_SAVE_TIMEOUT_S < ARCHIVE_STORE_TIMEOUT_S,
        "a task outlives two LLM calls": INGEST_TASK_S > 2 * LLM_TIMEOUT_S + EMBED_REMOTE_TIMEOUT_S,
        "half a read of the archive holds any turn": ENTRY_CONTENT_BYTES_MAX * 2 <= ARCHIVE_READ_CHARS_MAX,
        "a recall host has begun before it is given up": ARCHIVE_OPEN_S + STORE_TIMEOUT_S < HOST_START_S,
        "an archive that does not answer holds up no answer of its host": ARCHIVE_PROBE_S < HOST_PING_S,
        "who is quiet is looked at no more often than who talks": FOLLOW_POLL_S <= FOLLOW_POLL_S_MAX < FOLLOW_ACTIVE_S,
        "a store that is away is asked no more often than one that is idle": ARCHIVE_POLL_IDLE_S
        <= ARCHIVE_BACKOFF_S_MAX,
    }
    broken = [name for name, holds in relations.items() if not holds]
    if broken:
        raise AssertionError("limits.py contradicts itself: " + "; ".join(broken))
