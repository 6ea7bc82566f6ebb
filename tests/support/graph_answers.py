"""The test LLM's answers: which structured request it is, what it says by the grammar, and how it goes wrong on demand.

Requests are told apart by the name of the shape they want: the memory's own (extraction, resolution, digest), and those
of graphiti-core 0.31.2. Above: graph_llm. Below: graph_grammar.
"""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from tests.support.graph_grammar import Reader, Said, compare, same_name

Json = dict[str, Any]
Twist = Literal[
    "", "invents", "omits", "misattributes", "duplicates", "year-9999", "invalid-json", "cut-json", "wrong-shape",
    "empty", "fenced", "too-long",
]  # fmt: skip

INVENTED = "User loves skiing"
TOO_LONG_CHARS = 2_000  # of a transcript: "too-long" cuts the answers to what is longer

_LINE = re.compile(r"^\[(\d+)\] (user|assistant|other)(?: \([^)]*\))?: (.*)$")
_DATE_LINE = re.compile(r"^\(\w+ (\d{4}-\d\d-\d\d)\)$")
_REFERENCE = re.compile(r"^Reference time: \w+ (\d{4}-\d\d-\d\d \d\d:\d\d) UTC$", re.MULTILINE)
_SPOKEN = re.compile(r"^(?P<speaker>[^:\n]{1,60}): (?P<text>.*)$")


def answer(shape: str, text: str, twist: Twist) -> Json:
    """What the LLM says to a request for ``shape``; an object without content for a shape it doesn't know."""
    known = _ANSWERS.get(shape)
    return {} if known is None else known(text, twist)


# -- the memory's own


def _extraction(text: str, twist: Twist) -> Json:
    said, lines = _transcript(text)
    facts = [_fact(each) for each in said]
    facts = _twisted(facts, lines, twist)
    names = {fact["subject"]: "Person" for fact in facts if fact["subject"] != "user"}
    kinds = {each.object: each.kind for each in said}
    for fact in facts:
        names.setdefault(fact["object"], kinds.get(fact["object"], "Topic"))
    entities = [{"name": name, "type": kind} for name, kind in names.items()]
    return {"entities": entities, "facts": facts, **_digest(text, twist)}


def _fact(said: Said) -> Json:
    return {
        "subject": said.subject,
        "object": said.object,
        "relation": said.relation.upper(),
        "fact": said.text,
        "valid_at": said.valid_at,
        "invalid_at": said.invalid_at,
        "turns": list(said.turns),
        "speaker": "user",
        "category": said.category,
    }


def _twisted(facts: list[Json], lines: list[tuple[int, str]], twist: Twist) -> list[Json]:
    match twist:
        case "invents":
            skiing = Said("user", "skiing", "LOVES", INVENTED, "preferences", "Topic", turns=(lines[0][0],))
            return [*facts, _fact(skiing)] if lines else facts
        case "omits":
            return facts[1:]
        case "misattributes":
            return [_misattributed(fact, lines) for fact in facts]
        case "duplicates":
            return [copy for fact in facts for copy in (fact, {**fact, "fact": fact["fact"].upper()}, dict(fact))]
        case "year-9999":
            return [
                {**fact, "valid_at": "9999-12-31T23:59:59Z", "invalid_at": "0001-01-01T00:00:00Z"} for fact in facts
            ]
    return facts


def _misattributed(fact: Json, lines: list[tuple[int, str]]) -> Json:
    """Others' traits become the user's, the user's become the agent's words."""
    if fact["subject"] == "user":
        return {**fact, "turns": [number for number, speaker in lines if speaker == "assistant"]}
    words = re.sub(r"^User's \w+ ", "", fact["fact"])
    return {**fact, "subject": "user", "fact": words.replace(fact["subject"], "User", 1)}


def _transcript(text: str) -> tuple[list[Said], list[tuple[int, str]]]:
    reference = _REFERENCE.search(text)
    now = datetime.strptime(reference[1], "%Y-%m-%d %H:%M").replace(tzinfo=UTC) if reference else datetime.now(UTC)
    reader, lines = Reader(), []
    for line in text.splitlines():
        if day := _DATE_LINE.match(line):
            now = datetime.fromisoformat(day[1]).replace(tzinfo=UTC)
        elif match := _LINE.match(line):
            lines.append((int(match[1]), match[2]))
            if match[2] == "user":
                reader.turn(int(match[1]), html.unescape(match[3]), now)
    return reader.said, lines


def _resolution(text: str, twist: Twist) -> Json:
    data = json.loads(text[text.index("{") :])
    texts = {fact["id"]: fact["fact"] for fact in [*data["known"], *data["new"]]}
    places = {fact["id"]: place for place, fact in enumerate(data["new"])}
    facts = []
    for place, new in enumerate(data["new"]):
        same, against = compare(new["fact"], [(other, texts[other]) for other in new["compare_with"]])
        if same in places and places[same] > place:
            same = None
        facts.append({"new": new["id"], "duplicate_of": same, "contradicts": against})
    names = {candidate["id"]: candidate["name"] for candidate in data["candidates"]}
    entities = [
        {
            "entity": doubt["id"],
            "same_as": next((c for c in doubt["candidates"] if same_name(doubt["name"], names[c])), None),
        }
        for doubt in data["entities"]
    ]
    match twist:
        case "invents":
            facts = [{**fact, "duplicate_of": "k999", "contradicts": ["k998", "x"]} for fact in facts]
        case "omits":
            facts, entities = facts[1:], entities[1:]
        case "misattributes":
            facts = [{**fact, "contradicts": list(texts)} for fact in facts]
        case "duplicates":
            facts = facts + facts
    return {"facts": facts, "entities": entities}


def _digest(text: str, twist: Twist) -> Json:
    said, _ = _transcript(text)
    words = [html.unescape(match[3]) for match in map(_LINE.match, text.splitlines()) if match and match[2] == "user"]
    moments = [each.text + "." for each in said]
    summary = " ".join(moments[:3]) or (f"User said: {words[0]}" if words else "Nothing was said.")
    return {"summary": summary, "key_moments": moments * (20 if twist == "duplicates" else 1)}


# -- graphiti-core's


def _tagged(text: str, *names: str) -> str:
    for name in names:
        match = re.search(rf"<{name}>\s*(.*?)\s*</{name}>", text, re.DOTALL)
        if match:
            return match[1]
    return ""


def _episode(text: str) -> tuple[list[Said], list[str]]:
    """What the current message says, and who speaks in it."""
    reader, speakers = Reader(), []
    reference = _tagged(text, "REFERENCE_TIME").split(" #")[0].strip().replace("Z", "+00:00")
    now = datetime.fromisoformat(reference).astimezone(UTC) if reference[:4].isdigit() else datetime.now(UTC)
    body = _tagged(text, "CURRENT MESSAGE", "CURRENT_MESSAGE", "CURRENT MESSAGES")
    for number, line in enumerate(body.splitlines()):
        match = _SPOKEN.match(line.strip())
        if match:
            speakers.append(match["speaker"].strip())
            if match["speaker"].strip().casefold() == "user":
                reader.turn(number, match["text"], now)
    return reader.said, list(dict.fromkeys(speakers))


def _named(subject: str) -> str:
    return "User" if subject == "user" else subject


def _nodes(text: str, twist: Twist) -> Json:
    said, speakers = _episode(text)
    names = [*speakers, *(name for each in said for name in (_named(each.subject), each.object))]
    if twist == "invents":
        names.append("skiing")
    found = [{"name": name, "entity_type_id": 0, "episode_indices": [0]} for name in dict.fromkeys(names)]
    return {"extracted_entities": found}


def _edges(text: str, twist: Twist) -> Json:
    said, _ = _episode(text)
    edges = [_edge(each) for each in said]
    if twist == "year-9999":
        edges = [{**edge, "valid_at": "9999-12-31T23:59:59Z"} for edge in edges]
    return {"edges": edges[1:] if twist == "omits" else edges}


def _edge(said: Said) -> Json:
    return {
        "source_entity_name": _named(said.subject),
        "target_entity_name": said.object,
        "relation_type": said.relation.upper(),
        "fact": said.text,
        "valid_at": said.valid_at,
        "invalid_at": said.invalid_at,
        "episode_indices": [0],
    }


def _combined(text: str, twist: Twist) -> Json:
    edges = [{k: v for k, v in edge.items() if not k.endswith("_at")} for edge in _edges(text, twist)["edges"]]
    nodes = [
        {k: v for k, v in node.items() if k != "episode_indices"} for node in _nodes(text, twist)["extracted_entities"]
    ]
    return {"extracted_entities": nodes, "edges": edges}


def _node_resolutions(text: str, _: Twist) -> Json:
    new = json.loads(_tagged(text, "ENTITIES") or "[]")
    known = json.loads(_tagged(text, "EXISTING ENTITIES") or "[]")
    return {
        "entity_resolutions": [
            {
                "id": node["id"],
                "name": node["name"],
                "duplicate_candidate_id": next(
                    (other["candidate_id"] for other in known if same_name(node["name"], other["name"])), -1
                ),
            }
            for node in new
        ]
    }


def _edge_duplicates(text: str, twist: Twist) -> Json:
    existing = _listed(_tagged(text, "EXISTING FACTS"))
    candidates = _listed(_tagged(text, "FACT INVALIDATION CANDIDATES"))
    new = _tagged(text, "NEW FACT")
    same, _against = compare(new, [(str(fact["idx"]), fact["fact"]) for fact in existing])
    _same, against = compare(new, [(str(fact["idx"]), fact["fact"]) for fact in [*existing, *candidates]])
    if twist == "invents":
        return {"duplicate_facts": [97], "contradicted_facts": [98, 99]}
    return {
        "duplicate_facts": [] if same is None else [int(same)],
        "contradicted_facts": [int(each) for each in against],
    }


def _listed(text: str) -> list[Json]:
    """A list as Python or JSON writes it."""
    found: list[Json] = ast.literal_eval(text) if text else []
    return found


def _timestamps(text: str, twist: Twist) -> Json:
    reference = _tagged(text, "REFERENCE TIME", "REFERENCE_TIME")
    return {"valid_at": "9999-12-31T23:59:59Z" if twist == "year-9999" else reference or None, "invalid_at": None}


def _timestamps_batch(text: str, _: Twist) -> Json:
    facts = json.loads(_tagged(text, "FACTS") or "[]")
    found = [{"valid_at": fact.get("reference_time"), "invalid_at": None} for fact in facts]
    return {"timestamps": found}


def _summaries(text: str, _: Twist) -> Json:
    said, _speakers = _episode(text.replace("MESSAGES>", "CURRENT MESSAGE>"))
    summaries = []
    for entity in json.loads(_tagged(text, "ENTITIES") or "[]"):
        facts = [each.text for each in said if entity["name"] in (_named(each.subject), each.object)]
        summaries.append({"name": entity["name"], "summary": " ".join([entity.get("summary") or "", *facts]).strip()})
    return {"summaries": summaries}


def _summary(text: str, _: Twist) -> Json:
    return {"summary": " ".join(text.split())[-200:]}


def _description(text: str, _: Twist) -> Json:
    return {"description": " ".join(text.split())[-100:]}


_ANSWERS: dict[str, Callable[[str, Twist], Json]] = {
    "ExtractionAnswer": _extraction,
    "ResolutionAnswer": _resolution,
    "DigestAnswer": _digest,
    "ExtractedEntities": _nodes,
    "ExtractedEdges": _edges,
    "CombinedExtraction": _combined,
    "NodeResolutions": _node_resolutions,
    "EdgeDuplicate": _edge_duplicates,
    "EdgeTimestamps": _timestamps,
    "BatchEdgeTimestamps": _timestamps_batch,
    "SummarizedEntities": _summaries,
    "Summary": _summary,
    "SagaSummary": _summary,
    "SummaryDescription": _description,
}
