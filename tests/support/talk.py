"""Conversations for tests of merging: turns, what an LLM would extract of them, and a user's knowledge grown by them.

Vectors stand for the words of a text, so that texts alike are near each other; no model is needed.
"""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from memory.ingestion.applying import apply
from memory.ingestion.extraction import ExtractedFact, Extraction, NamedEntity
from memory.ingestion.merging import Draft, merge, plan, undecided
from memory.ingestion.resolution import EntityVerdict, FactVerdict, Question, Verdict
from memory.knowledge import Category, Chunk, ChunkSpan, ChunkState, Knowledge, KnownFact, Patch, Speaker, TurnPart
from memory.knowledge_ports import GraphMatches, Related

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DIMENSION = 32
Judge = Callable[[Question], Verdict]


def vector(text: str) -> bytes:
    """A unit vector that is nearer to another one the more words the two texts share."""
    numbers = [0.0] * DIMENSION
    for word in re.findall(r"\w+", text.casefold()) or [text]:
        digest = hashlib.sha256(word.encode(errors="surrogatepass")).digest()
        for place in range(DIMENSION):
            numbers[place] += digest[place] / 255 - 0.5
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return array("f", [number / length for number in numbers]).tobytes()


def similarity(a: bytes, b: bytes) -> float:
    left, right = array("f", a), array("f", b)
    return sum(x * y for x, y in zip(left, right, strict=True))


def turn(text: str, *, minute: float = 0, day: int = 0, speaker: Speaker = "user", **fields: str) -> TurnPart:
    said_at = NOON + timedelta(days=day, minutes=minute)
    return TurnPart(f"t{day}-{minute:g}-{speaker}", speaker, text, said_at, name=fields.get("name", ""))


def chunk(session: str, ordinal: int = 0) -> Chunk:
    return Chunk(
        id=f"ep-{session}-{ordinal}",
        user=1,
        session_id=session,
        ordinal=ordinal,
        span=ChunkSpan(1, 2),
        state=ChunkState.WAITING,
        created_at=NOON,
    )


def fact(
    subject: str,
    relation: str,
    object_: str,
    text: str,
    *,
    turns: Sequence[int] = (0,),
    valid_at: datetime | None = None,
    invalid_at: datetime | None = None,
    speaker: Speaker = "user",
    category: Category = Category.USER_INFORMATION,
) -> ExtractedFact:
    return ExtractedFact(subject, object_, relation, text, category, speaker, valid_at, invalid_at, tuple(turns))


def extracted(*facts: ExtractedFact, **kinds: str) -> Extraction:
    return Extraction(tuple(NamedEntity(name, kind) for name, kind in kinds.items()), facts)


def says_nothing(question: Question) -> Verdict:
    """The LLM that leaves everything out."""
    return Verdict()


def judge(
    *, same: Sequence[tuple[str, str]] = (), against: Sequence[tuple[str, str]] = (), who: dict[str, str] | None = None
) -> Judge:
    """An LLM that knows which texts say the ``same``, which are ``against`` each other, and ``who`` is who by name."""
    alike, opposed = {frozenset(pair) for pair in same}, {frozenset(pair) for pair in against}

    def answer(question: Question) -> Verdict:
        texts = {one.id: one.text for one in question.known} | {one.id: one.text for one in question.new}
        names = {one.id: one.name for one in question.candidates}
        places = {one.id: place for place, one in enumerate(question.new)}
        facts = []
        for place, new in enumerate(question.new):
            others = [(id_, frozenset((texts[id_], new.text))) for id_ in new.compare_with]
            repeated = [id_ for id_, pair in others if pair in alike and places.get(id_, -1) < place]
            facts.append(
                FactVerdict(
                    new.id,
                    repeated[0] if repeated else None,
                    tuple(id_ for id_, pair in others if pair in opposed),
                )
            )
        meant = who or {}
        entities = [
            EntityVerdict(
                doubt.id, next((id_ for id_ in doubt.candidates if names[id_] == meant.get(doubt.name)), None)
            )
            for doubt in question.entities
        ]
        return Verdict(tuple(facts), tuple(entities))

    return answer


@dataclass(slots=True)
class Memory:
    """A user's knowledge, grown chunk by chunk as the pipeline does it; ``calls`` counts questions to the LLM."""

    knowledge: Knowledge = field(default_factory=Knowledge)
    calls: int = 0
    patches: list[Patch] = field(default_factory=list)

    def hear(
        self,
        session: str,
        turns: Sequence[TurnPart],
        extraction: Extraction,
        judge: Judge = says_nothing,
        *,
        ordinal: int = 0,
    ) -> Patch:
        """Ingest a chunk."""
        now = max((one.said_at for one in turns), default=NOON) + timedelta(hours=1)
        planned = plan(chunk(session, ordinal), turns, extraction, now=now)
        vectors = {text: vector(text) for text in planned.texts}
        matches = self._matches(planned.entity_probes(vectors), planned.fact_probes(vectors))
        draft = Draft(planned, vectors, matches, self.related(planned.keys, matches))
        question = undecided(draft)
        verdict = None
        if question is not None:
            self.calls += 1
            verdict = judge(question)
        patch = merge(draft, verdict)
        self.knowledge = apply(self.knowledge, patch)
        self.patches.append(patch)
        return patch

    def live(self, now: datetime | None = None) -> dict[str, KnownFact]:
        """Live facts by their text."""
        at = now or max((one.created_at for one in self.knowledge.episodes), default=NOON)
        return {one.statement.text: one for one in self.knowledge.facts if one.live(at)}

    def _matches(self, entities: Sequence[object], facts: Sequence[object]) -> GraphMatches:
        def near(data: bytes, known: Sequence[tuple[str, bytes]], least: float) -> tuple[str, ...]:
            scored = sorted(((similarity(data, other), id_) for id_, other in known), reverse=True)
            return tuple(id_ for score, id_ in scored[:10] if score >= least)

        names = [(one.id, one.vector) for one in self.knowledge.entities]
        texts = [(one.id, one.statement.vector) for one in self.knowledge.facts]
        return GraphMatches(
            tuple(near(probe.vector, names, 0.55) for probe in entities),  # type: ignore[attr-defined]
            tuple(near(probe.vector, texts, 0.2) for probe in facts),  # type: ignore[attr-defined]
        )

    def related(self, keys: Sequence[str], matches: GraphMatches) -> Related:
        """What SQL would give."""
        ids = {id_ for found in matches.entities for id_ in found}
        entities = {one.id: one for one in self.knowledge.entities if one.key in keys or one.id in ids}
        wanted = {id_ for found in matches.facts for id_ in found}
        facts = {
            one.id: one
            for one in self.knowledge.facts
            if one.id in wanted or one.subject_id in entities or one.object_id in entities
        }
        return Related(entities, facts)
