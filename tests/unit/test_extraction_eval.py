"""``python -m memory eval-extraction``: what counts as found, what it reports, and what it says to wrong input."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from memory import cli
from memory.errors import ProviderAnswerInvalid, ProviderRefused, ProviderUnavailable
from memory.extraction_eval import DialogueError, evaluate, read
from memory.ingestion.extraction import EntityAnswer, ExtractionAnswer, FactAnswer
from memory.ingestion.matching import likeness
from memory.knowledge import Category
from memory.providers.language import cost_usd
from tests.support.graph_llm import serving
from tests.support.heard import fact
from tests.support.scripted_answers import Scripted

LABELLED = Path(__file__).parents[1] / "labelled" / "dialogues.jsonl"

ONE = {
    "id": "one",
    "language": "en",
    "reference_time": "2026-03-01T10:00:00Z",
    "turns": [{"speaker": "user", "text": "I moved to Leeds. I love sushi. I work at Acme, the sun shines."}],
    "facts": [
        {
            "subject": "user",
            "relation": "LIVES_IN",
            "object": "Leeds",
            "fact": "User lives in Leeds",
            "category": "user_information",
        },
        {
            "subject": "user",
            "relation": "LOVES",
            "object": "sushi",
            "fact": "User loves sushi",
            "category": "preferences",
        },
        {
            "subject": "user",
            "object": "Acme",
            "fact": "User works at Acme",
            "category": "user_information",
            "optional": True,
        },
    ],
    "wrong": [{"subject": "user", "object": "sun", "fact": "User likes the sun shining", "category": "preferences"}],
}


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def answer(*facts: tuple[str, str, str]) -> ExtractionAnswer:
    return ExtractionAnswer(
        entities=[EntityAnswer(name="Leeds", type="Place")],
        facts=[
            FactAnswer(
                subject="user",
                object=thing,
                relation="SAYS",
                fact=text,
                valid_at=None,
                invalid_at=None,
                turns=[0],
                speaker="user",
                category=category,
            )
            for text, thing, category in facts
        ],
    )


FOUND = answer(
    ("User moved to Leeds and lives there", "Leeds", "preferences"),
    ("User works at Acme", "Acme", "user_information"),
    ("User likes the sun shining", "sun", "preferences"),
    ("User hates sushi", "sushi", "preferences"),
)


async def test_counts_what_was_right_found_missed_and_made_up(tmp_path: Path) -> None:
    result = await evaluate(read(written(tmp_path, ONE, "", "  ")), Scripted(FOUND), cost_usd)
    assert result["overall"] == {
        "expected": 2,
        "found": 2,
        "right": 1,
        "precision": 50.0,
        "recall": 50.0,
        "category_right": 0.0,
    }
    assert result["categories"]["user_information"]["recall"] == 100.0
    assert result["categories"]["preferences"]["recall"] == 0.0
    assert result["languages"] == {"en": result["overall"]}
    assert (result["dialogues"], result["failed"], result["mistakes"]) == (1, 0, 1)
    assert sum(result["dropped"].values()) == 1
    assert result["llm"] == {"model": "scripted", "calls": 1, "input_tokens": 0, "output_tokens": 0, "cost_usd": None}


async def test_waits_for_an_llm_that_is_away_and_counts_dialogues_it_never_answered(tmp_path: Path) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    busy, bad = ProviderUnavailable("busy", retry_after_s=7), ProviderAnswerInvalid("bad")
    dialogues = read(written(tmp_path, ONE))
    result = await evaluate(dialogues, Scripted(busy, bad, FOUND), cost_usd, sleep)
    assert (result["failed"], slept) == (0, [7])
    result = await evaluate(dialogues, Scripted(bad, bad, bad, bad), cost_usd, sleep)
    assert (result["failed"], result["overall"]["recall"]) == (1, 0.0)
    result = await evaluate(dialogues * 2, Scripted(FOUND, *[busy] * 4), cost_usd, sleep)
    assert result["failed"] == 1
    with pytest.raises(ProviderRefused):
        await evaluate(dialogues, Scripted(ProviderRefused("key")), cost_usd, sleep)


async def test_an_llm_that_never_answers_is_given_up_on(tmp_path: Path) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    dialogues = read(written(tmp_path, ONE)) * 20
    away = ProviderUnavailable("It can't be reached. Check OPENAI_BASE_URL.")
    with pytest.raises(ProviderUnavailable, match="Check OPENAI_BASE_URL"):
        await evaluate(dialogues, Scripted(*[away] * 80), cost_usd, sleep)
    assert sum(slept) <= 2 * 4 * (2 + 4 + 8), "the others were not asked for"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('{"id": "x"}', "reference_time"),
        (json.dumps({**ONE, "turns": []}), "turns"),
        (json.dumps({**ONE, "turns": [{"speaker": "cat", "text": "meow"}]}), "turns.0.speaker"),
        (json.dumps({**ONE, "reference_time": "soon"}), "reference_time"),
    ],
)
def test_says_which_line_and_field_is_wrong(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(DialogueError, match=r"line 2.*") as caught:
        read(written(tmp_path, ONE, line))
    assert said.casefold() in str(caught.value).casefold()
    assert "meow" not in str(caught.value)


def test_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    with pytest.raises(DialogueError, match="can't be read"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(DialogueError, match="no dialogue"):
        read(written(tmp_path))


def test_the_command_asks_the_configured_llm_by_the_products_own_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert cli.main(["eval-extraction", "--dialogues", str(LABELLED), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["llm"]["calls"] == server.stats.llm_calls > 60
        assert cli.main(["eval-extraction", "--dialogues", str(LABELLED)]) == 0
    assert result["overall"]["precision"] > 80
    assert result["mistakes"] == 0
    assert "orders_and_transactions" in capsys.readouterr().out


def test_the_command_says_what_to_set_where_there_is_no_llm(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval-extraction", "--dialogues", str(LABELLED)]) == 1
    assert "OPENAI_API_KEY" in capsys.readouterr().err


def test_the_command_says_why_an_llm_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(key="right") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        assert cli.main(["eval-extraction", "--dialogues", str(LABELLED)]) == 1
    assert "refuses with 401" in capsys.readouterr().err


def test_the_labelled_set_covers_every_category_and_six_languages_with_dialogues_that_hold_nothing() -> None:
    dialogues = read(LABELLED)
    assert len(dialogues) >= 60
    assert len({dialogue.id for dialogue in dialogues}) == len(dialogues)
    categories = Counter(label.category for dialogue in dialogues for label in dialogue.facts)
    assert set(categories) == {category.value for category in Category}
    assert min(categories.values()) >= 5
    assert {dialogue.language for dialogue in dialogues} == {"en", "de", "es", "fr", "ar", "hi"}
    assert sum(not dialogue.facts for dialogue in dialogues) >= 10


@pytest.mark.parametrize(
    ("found", "thing", "label", "same"),
    [
        ("User moved to Leeds and lives there", "Leeds", "User lives in Leeds", True),
        ("User lives in York", "York", "User lives in Leeds", False),
        ("User does not live in Leeds", "Leeds", "User lives in Leeds", False),
        ("User's order 4471 is late", "order 4471", "User's order 4472 is late", False),
        ("User's order 4471 is delayed", "order 4471", "User's order 4471 is late", True),
    ],
)
def test_two_wordings_are_the_same_fact_or_not(found: str, thing: str, label: str, same: bool) -> None:
    wanted = "Leeds" if "Leeds" in label else label.removeprefix("User's ").removesuffix(" is late")
    assert (likeness(fact(found, thing), "user", wanted, label) > 0) is same


def test_arguments_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["eval-extraction"])
    assert "--dialogues" in capsys.readouterr().err
