"""Graphiti's own ingestion on scripted answers: an LLM client that knows what each episode says, and an embedder.

Imports graphiti_core: for tests that compare with it only.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from graphiti_core.embedder.client import EmbedderClient
from graphiti_core.llm_client.client import LLMClient
from graphiti_core.llm_client.config import LLMConfig
from graphiti_core.prompts.models import Message
from pydantic import BaseModel

from memory.ingestion.extraction import Extraction
from memory.knowledge import EntityKind
from tests.support.talk import vector

_KNOWN = re.compile(r"'idx': (\d+), 'fact': '([^']*)'")
_NEW = re.compile(r"<NEW FACT>\s*(.*?)\s*</NEW FACT>", re.DOTALL)
_EXISTING = re.compile(r"<EXISTING FACTS>(.*?)</EXISTING FACTS>", re.DOTALL)
_CANDIDATES = re.compile(r"<FACT INVALIDATION CANDIDATES>(.*?)</FACT INVALIDATION CANDIDATES>", re.DOTALL)


ENTITY_TYPES: dict[str, type[BaseModel]] = {kind.value: type(kind.value, (BaseModel,), {}) for kind in EntityKind}


class ScriptedLLM(LLMClient):
    """Answers Graphiti's prompts from ``extraction`` (of the episode that comes next) and from pairs of texts that say
    the ``same``, or are ``against`` each other. ``extra``: names of entities that no fact is about."""

    def __init__(self, same: Sequence[tuple[str, str]], against: Sequence[tuple[str, str]]) -> None:
        super().__init__(LLMConfig(api_key="none", model="scripted"))
        self.extraction = Extraction()
        self.extra: tuple[str, ...] = ()
        self.calls = 0
        self._same = {frozenset(pair) for pair in same}
        self._against = {frozenset(pair) for pair in against}

    async def _generate_response(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def generate_response(
        self, messages: list[Message], response_model: type[BaseModel] | None = None, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        self.calls += 1
        assert response_model is not None
        answers: dict[str, Callable[[str], dict[str, Any]]] = {
            "ExtractedEntities": self._entities,
            "NodeResolutions": lambda text: {"entity_resolutions": []},
            "ExtractedEdges": self._edges,
            "EdgeDuplicate": self._verdict,
            "SummarizedEntities": lambda text: {"summaries": []},
        }
        return answers[response_model.__name__](messages[-1].content)

    def _entities(self, text: str) -> dict[str, Any]:
        names = dict.fromkeys(
            shown(name) for fact in self.extraction.facts for name in (fact.subject, fact.object)
        ) | dict.fromkeys(self.extra)
        kinds = {shown(entity.name): entity.kind for entity in self.extraction.entities}
        ids = {kind: place for place, kind in enumerate(("Entity", *EntityKind))}
        return {
            "extracted_entities": [{"name": name, "entity_type_id": ids[kinds.get(name, "Entity")]} for name in names]
        }

    def _edges(self, text: str) -> dict[str, Any]:
        return {
            "edges": [
                {
                    "source_entity_name": shown(fact.subject),
                    "target_entity_name": shown(fact.object),
                    "relation_type": fact.relation,
                    "fact": fact.text,
                    "valid_at": fact.valid_at.isoformat() if fact.valid_at else None,
                    "invalid_at": fact.invalid_at.isoformat() if fact.invalid_at else None,
                }
                for fact in self.extraction.facts
            ]
        }

    def _verdict(self, text: str) -> dict[str, Any]:
        new, existing, candidates = (_found(pattern, text) for pattern in (_NEW, _EXISTING, _CANDIDATES))
        known = _KNOWN.findall(existing)
        return {
            "duplicate_facts": [int(idx) for idx, fact in known if frozenset((fact, new)) in self._same],
            "contradicted_facts": [
                int(idx)
                for idx, fact in [*known, *_KNOWN.findall(candidates)]
                if frozenset((fact, new)) in self._against
            ],
        }


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    assert match is not None
    return match[1]


def shown(name: str) -> str:
    """What the entity of a name is called in the graph."""
    return "User" if name == "user" else name


class WordEmbedder(EmbedderClient):
    """The same vectors as tests.support.talk's."""

    async def create(self, input_data: Any) -> list[float]:
        text = input_data if isinstance(input_data, str) else input_data[0]
        return list(array("f", vector(text)))

    async def create_batch(self, input_data_list: list[str]) -> list[list[float]]:
        return [list(array("f", vector(text))) for text in input_data_list]
