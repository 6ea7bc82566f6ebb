"""The Cypher of the graph store, and the layout it makes: Graphiti's, with what makes it exact to restore.

::

    (:Episodic {uuid, name, group_id, source, source_description, content, entity_edges, created_at, valid_at, …})
        -[:MENTIONS {uuid, group_id, created_at, name, name_embedding}]->
    (:Entity:Person {uuid, name, group_id, summary, name_embedding, created_at, kind, key})    or another EntityKind
        -[:RELATES_TO {uuid, name, fact, fact_embedding, group_id, episodes, created_at, valid_at, invalid_at,
                       expired_at, reference_time, origin, said_invalid_at, conflicts, turns, …, words}]-> (:Entity)
    (:Wording {uuid, edge, episode, fact, fact_embedding, …})    how else a fact was put
    (:Meta {version, model, dimension, episode, digest, token})  one in a graph: which state of SQL it shows

A writing query begins by putting its ``token`` on the Meta node it expects; each later part needs that node. So a query
on a graph that is of another version, or gone, changes nothing, whoever else writes at the same time. Parts are
joined by ``WITH count(*)``: one row, however many there were.

Above: store, restoring. Below: knowledge (kinds).
"""

from __future__ import annotations

from memory.knowledge import EntityKind

_STOPWORDS = (
    "['a', 'is', 'the', 'an', 'and', 'are', 'as', 'at', 'be', 'but', 'by', 'for', 'if', 'in', 'into', 'it', 'no',"
    " 'not', 'of', 'on', 'or', 'such', 'that', 'their', 'then', 'there', 'these', 'they', 'this', 'to', 'was', 'will',"
    " 'with']"
)

WORDS_INDEX = "CREATE FULLTEXT INDEX FOR ()-[e:RELATES_TO]-() ON (e.words)"

# Graphiti's indices (a test compares them), and ours. Range before fulltext, as FalkorDB wants it.
INDICES = (
    "CREATE INDEX FOR (n:Entity) ON (n.uuid, n.group_id, n.name, n.created_at)",
    "CREATE INDEX FOR (n:Episodic) ON (n.uuid, n.group_id, n.created_at, n.valid_at)",
    "CREATE INDEX FOR (n:Community) ON (n.uuid)",
    "CREATE INDEX FOR (n:Saga) ON (n.uuid, n.group_id, n.name)",
    "CREATE INDEX FOR ()-[e:RELATES_TO]-()"
    " ON (e.uuid, e.group_id, e.name, e.created_at, e.expired_at, e.valid_at, e.invalid_at)",
    "CREATE INDEX FOR ()-[e:MENTIONS]-() ON (e.uuid, e.group_id)",
    "CREATE INDEX FOR ()-[e:HAS_MEMBER]-() ON (e.uuid)",
    "CREATE INDEX FOR ()-[e:HAS_EPISODE]-() ON (e.uuid, e.group_id)",
    "CREATE INDEX FOR ()-[e:NEXT_EPISODE]-() ON (e.uuid, e.group_id)",
    "CREATE INDEX FOR (w:Wording) ON (w.uuid, w.edge)",
    "CREATE FULLTEXT INDEX FOR (n:Episodic) ON (n.content, n.source, n.source_description, n.group_id)"
    f" OPTIONS {{stopwords: {_STOPWORDS}}}",
    f"CREATE FULLTEXT INDEX FOR (n:Entity) ON (n.name, n.summary, n.group_id) OPTIONS {{stopwords: {_STOPWORDS}}}",
    f"CREATE FULLTEXT INDEX FOR (n:Community) ON (n.name, n.group_id) OPTIONS {{stopwords: {_STOPWORDS}}}",
    "CREATE FULLTEXT INDEX FOR ()-[e:RELATES_TO]-() ON (e.name, e.fact, e.group_id)",
    WORDS_INDEX,
)

STATE = "MATCH (m:Meta) RETURN m.version, m.model, m.dimension, m.episode, m.digest"
ANYTHING = "MATCH (n) RETURN 1 LIMIT 1"

# -- matches: ids only; vectors hoisted out, for FalkorDB's vector index loses results once edges change

_WITHIN = "MATCH (m:Meta) WHERE m.model = $model AND m.dimension = $dimension UNWIND $probes AS probe"
NEAR_ENTITIES = f"""
{_WITHIN} WITH probe.i AS i, vecf32(probe.v) AS v
MATCH (n:Entity) WITH i, n, vec.cosineDistance(n.name_embedding, v) AS d WHERE d <= $far
WITH i, n, d ORDER BY d, n.uuid WITH i, collect(n.uuid)[0..$limit] AS found UNWIND found AS id RETURN i, id"""
NEAR_FACTS = f"""
{_WITHIN} WITH probe.i AS i, vecf32(probe.v) AS v
MATCH ()-[e:RELATES_TO]->() WITH i, e, vec.cosineDistance(e.fact_embedding, v) AS d WHERE d <= $far
WITH i, e, d ORDER BY d, e.uuid WITH i, collect(e.uuid)[0..$limit] AS found UNWIND found AS id RETURN i, id"""
FACTS_WITH_WORDS = """
UNWIND $probes AS probe
CALL db.idx.fulltext.queryRelationships('RELATES_TO', probe.q) YIELD relationship AS e, score
WITH probe, e, score ORDER BY score DESC, e.uuid
WITH probe, collect(e.uuid)[0..$limit] AS found UNWIND found AS id RETURN probe.i, id"""

# -- writing

_HELD = "MATCH (:Meta {token: $token})"
_THEN = "\nWITH count(*) AS done\n"

# The first write makes the node, in a graph that is empty but for its indices; anything else there is not ours.
BEGIN = """
OPTIONAL MATCH (n) WITH count(n) AS had UNWIND (CASE WHEN had = 0 THEN [1] ELSE [] END) AS one
CREATE (:Meta {version: $expected, model: $model, dimension: 0, episode: '', digest: '', token: ''})"""
TAKE = """
MATCH (m:Meta) WHERE m.version = $expected AND m.model = $model AND ($dimension = 0 OR m.dimension IN [0, $dimension])
SET m.version = $version, m.episode = $episode, m.digest = $digest, m.token = $token,
    m.dimension = CASE WHEN $dimension = 0 THEN m.dimension ELSE $dimension END"""
EPISODES = f"""
{_HELD} UNWIND $episodes AS x MERGE (e:Episodic {{uuid: x.uuid}}) SET e = x"""
# A label can't be a parameter: each that there is stands in the text, once.
_LABEL = "".join(
    f"\nFOREACH (_ IN CASE WHEN x.label = '{kind}' THEN [1] ELSE [] END | SET n:{kind})" for kind in EntityKind
)
ENTITIES = f"""
{_HELD} UNWIND $entities AS x MERGE (n:Entity {{uuid: x.p.uuid}})
ON CREATE SET n = x.p, n.name_embedding = CASE WHEN x.v IS NULL THEN NULL ELSE vecf32(x.v) END{_LABEL}"""
FACTS = f"""
{_HELD} UNWIND $facts AS x
MATCH (a:Entity {{uuid: x.p.source_node_uuid}}) MATCH (b:Entity {{uuid: x.p.target_node_uuid}})
MERGE (a)-[r:RELATES_TO {{uuid: x.p.uuid}}]->(b)
SET r = x.p SET r.fact_embedding = CASE WHEN x.v IS NULL THEN NULL ELSE vecf32(x.v) END"""
# A vector that is set over another one stays the old one: it is taken away first.
CHANGED = f"""
{_HELD} UNWIND $changed AS x MATCH ()-[r:RELATES_TO {{uuid: x.p.uuid}}]->() SET r = x.p
WITH r, x SET r.fact_embedding = CASE WHEN x.v IS NULL THEN NULL ELSE vecf32(x.v) END"""
WORDINGS = f"""
{_HELD} UNWIND $wordings AS x MERGE (w:Wording {{uuid: x.p.uuid}})
SET w = x.p SET w.fact_embedding = CASE WHEN x.v IS NULL THEN NULL ELSE vecf32(x.v) END"""
MENTIONS = f"""
{_HELD} UNWIND $mentions AS x MATCH (e:Episodic {{uuid: x.episode}}) MATCH (n:Entity {{uuid: x.entity}})
MERGE (e)-[m:MENTIONS {{uuid: x.p.uuid}}]->(n)
SET m = x.p SET m.name_embedding = CASE WHEN x.v IS NULL THEN NULL ELSE vecf32(x.v) END"""
# The same rule as ingestion.summaries, which a test compares.
SUMMARIES = f"""
{_HELD} UNWIND $touched AS id MATCH (n:Entity {{uuid: id}})
OPTIONAL MATCH (n)-[r:RELATES_TO]-() WHERE r.invalid_at IS NULL OR r.invalid_at > $now
WITH n, r ORDER BY r.valid_at DESC, r.fact
WITH n, collect(DISTINCT r.fact)[0..$lines_max] AS lines
SET n.summary = reduce(s = '', line IN lines | CASE WHEN s = '' AND size(line) <= $chars_max THEN line
    WHEN size(s) + 1 + size(line) <= $chars_max THEN s + '\n' + line ELSE s END)"""
HELD = "\nMATCH (m:Meta {token: $token}) RETURN count(m)"

_PATCH = (TAKE, EPISODES, ENTITIES, FACTS, CHANGED, WORDINGS, MENTIONS, SUMMARIES, HELD)
SAVE = _THEN.join(_PATCH)
SAVE_FIRST = _THEN.join((BEGIN, *_PATCH))

# -- restoring: begun by a Meta node of no version, ended by setting it

RESTORE_BEGIN = _THEN.join(
    (
        "MERGE (m:Meta {token: $token})"
        " SET m.version = -1, m.model = $model, m.dimension = $dimension, m.episode = '', m.digest = ''",
        HELD,
    )
)
RESTORE_PARTS = {
    "entities": _THEN.join((ENTITIES, HELD)),
    "facts": _THEN.join((FACTS, HELD)),
    "wordings": _THEN.join((WORDINGS, HELD)),
    "episodes": _THEN.join((EPISODES, HELD)),
    "mentions": _THEN.join((MENTIONS, HELD)),
    "touched": _THEN.join((SUMMARIES, HELD)),
}
RESTORE_END = "MATCH (m:Meta {token: $token}) SET m.version = $version RETURN count(m)"
