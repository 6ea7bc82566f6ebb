"""What of an extraction counts: only what the user said, about whom they said it (L05, L30, L32)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.extraction_eval import Dialogue, read
from memory.ingestion.extraction import ExtractedFact, Extraction, NamedEntity, category_of
from memory.ingestion.guards import guarded
from memory.knowledge import USER_ENTITY_KEY, Category, Speaker, TurnPart
from memory.limits import ENTITY_NAME_CHARS_MAX, FACT_CHARS_MAX, FACTS_PER_CHUNK_MAX
from tests.support.heard import NOW, fact, guard, kept, turns

DIALOGUES = read(Path(__file__).parents[2] / "labelled" / "dialogues.jsonl")
PREFERENCES, ISSUES, ORDERS = Category.PREFERENCES, Category.ISSUES, Category.ORDERS
APPOINTMENTS = Category.APPOINTMENTS

BASICS = turns("u: My order 4471 is late. I prefer email. My cat is called Biscuit, I moved to Leeds last week.")


# -- whose it is


@pytest.mark.case("L05")
def test_L05_a_brothers_traits_are_the_brothers() -> None:
    said = turns("u: My brother Omar is a pilot. He is terrified of dogs.")
    right = [
        fact("User's brother is called Omar", "Omar"),
        fact("User's brother Omar is a pilot", "pilot", subject="Omar"),
        fact("Omar is terrified of dogs", "dogs", subject="Omar", category=PREFERENCES),
    ]
    wrong = [fact("User is a pilot", "pilot"), fact("User is terrified of dogs", "dogs", category=PREFERENCES)]
    assert kept(said, *right, *wrong) == [each.text for each in right]


@pytest.mark.case("L05")
def test_L05_a_friends_dislike_is_the_friends() -> None:
    said = turns("u: My friend Jo hates football but her dad signed her up.")
    right = fact("Jo hates football", "football", subject="Jo", category=PREFERENCES)
    assert kept(said, right, fact("User hates football", "football", category=PREFERENCES)) == [right.text]


@pytest.mark.case("L05")
def test_L05_who_takes_the_phone_over_adds_nothing_and_ends_nothing() -> None:
    said = turns(
        "u: I take warfarin.",
        "a: May I speak to Zoe?",
        "u: Hi, this is Zoe now, I take no medicines.",
        "a: Thanks.",
        "u: It's me again, I live in Leeds.",
    )
    wrong = [
        fact("User takes no medicines", "medicines", 2),
        fact("Zoe takes no medicines", "medicines", 2, subject="Zoe"),
        fact("Zoe takes warfarin", "warfarin", 0, subject="Zoe"),
    ]
    right = [fact("User takes warfarin", "warfarin", 0), fact("User lives in Leeds", "Leeds", 4)]
    assert kept(said, *wrong, *right) == [each.text for each in right]


def test_what_others_on_the_line_say_is_no_fact() -> None:
    said = turns("o: I live in Paris.", "u: That was my neighbour.")
    assert kept(said, fact("User lives in Paris", "Paris", 0), fact("User lives in Paris", "Paris", 0, 1)) == []


def test_the_user_is_the_user_by_whatever_name() -> None:
    said = turns("u: My name is Dana and I live in Leeds.")
    found = guard(
        said,
        fact("User lives in Leeds", "Leeds", subject="Dana"),
        fact("User's name is Dana", "Dana", subject="The user"),
        user_name="Dana",
    ).extraction
    assert [each.subject for each in found.facts] == [USER_ENTITY_KEY, USER_ENTITY_KEY]
    assert [entity.name for entity in found.entities] == ["Leeds", "Dana"]


# -- what was stated


@pytest.mark.case("L30")
def test_L30_a_joke_that_is_taken_back_is_none_and_what_replaces_it_is() -> None:
    said = turns("u: I was joking, I am not allergic to nuts.")
    right = fact("User is not allergic to nuts", "nuts")
    assert kept(said, right, fact("User is allergic to nuts", "nuts")) == [right.text]


@pytest.mark.case("L30")
def test_L30_a_joke_within_one_call_takes_back_what_was_said_before() -> None:
    said = turns(
        "u: I am allergic to nuts. I live in Leeds.", "a: Noted.", "u: Just kidding!", "a: Ha.", "u: I am vegan."
    )
    facts = [fact("User is allergic to nuts", "nuts", 0), fact("User is vegan", "vegan", 4)]
    assert kept(said, *facts) == ["User is vegan"]


@pytest.mark.case("L30")
@pytest.mark.parametrize(
    "line",
    [
        "u: Remember when I said I was allergic to nuts? Silly.",
        "u: Am I allergic to nuts?",
        "u: am i allergic to nuts",
        "u: If I was allergic to nuts I would tell you.",
        "u: What if I am allergic to nuts?",
    ],
)
def test_L30_to_mention_it_is_not_to_state_it(line: str) -> None:
    assert kept(turns(line), fact("User is allergic to nuts", "nuts")) == []


@pytest.mark.case("L32")
@pytest.mark.parametrize("answer", ["mm-hm", "uh huh, um", "[noise]", "Thanks for watching!", "Okay."])
def test_L32_the_agents_words_are_no_facts_of_the_users(answer: str) -> None:
    said = turns("a: Many people in Oslo love skiing.", f"u: {answer}")
    skiing = fact("User loves skiing", "skiing", 0, category=PREFERENCES)
    assert kept(said, skiing, replace(skiing, turns=(1,)), replace(skiing, turns=(0, 1))) == []


@pytest.mark.case("L32")
def test_L32_what_was_barely_understood_is_no_source_and_0_is_unknown() -> None:
    claim = fact("User loves elephants", "elephants", category=PREFERENCES)
    for confidence, expected in ((0.2, []), (0.0, [claim.text]), (None, [claim.text]), (0.9, [claim.text])):
        assert kept(turns("u: I love elephants", confidence=confidence), claim) == expected


@pytest.mark.case("L32")
def test_L32_a_voicemail_greeting_and_the_television_are_not_the_user() -> None:
    greeting = turns("u: You have reached Dana, leave a message.", "u: My number is 555 0142.")
    assert kept(greeting, fact("User's name is Dana", "Dana"), fact("User's number is 555 0142", "555 0142", 1)) == []
    voted = fact("User has always voted green", "green", category=PREFERENCES)
    assert kept(turns("u: I have always voted green.", "a: Sorry?", "u: That was the TV."), voted) == []


def test_a_yes_confirms_what_the_agent_asked_and_a_no_does_not() -> None:
    order = fact("User's order 4471 is the red kettle", "red kettle", 1, category=ORDERS)
    assert kept(turns("a: Order 4471, the red kettle?", "u: Yes, that's it."), order) == [order.text]
    assert kept(turns("a: Order 4471, the red kettle?", "u: No, it isn't."), order) == []
    assert kept(turns("a: Order 4471 is the red kettle.", "u: Hm, interesting."), order) == []


def test_a_brief_answer_says_what_was_asked_for() -> None:
    said = turns("a: What's your cat called?", "u: Biscuit.")
    assert kept(said, fact("User's cat is called Biscuit", "Biscuit", 1)) == ["User's cat is called Biscuit"]
    assert kept(said, fact("User's cat is called Muffin", "Muffin", 1)) == []


def test_a_request_says_what_is_wanted_and_nothing_of_who_wants_it() -> None:
    said = turns("u: Could you book a table for Friday at the Golden Swan?")
    table = fact("User wants a table at the Golden Swan for Friday", "Golden Swan", category=APPOINTMENTS)
    assert kept(said, table, replace(table, category=Category.USER_INFORMATION)) == [table.text]


def test_of_a_slip_of_the_tongue_the_last_value_counts() -> None:
    said = turns("u: My appointment is on Monday, no sorry, Tuesday.")
    tuesday = fact("User's appointment is on Tuesday", "Tuesday", category=APPOINTMENTS)
    assert kept(said, fact("User's appointment is on Monday", "Monday", category=APPOINTMENTS), tuesday) == [
        tuesday.text
    ]


# -- the same words


@pytest.mark.parametrize(
    ("text", "thing", "category"),
    [
        ("User's order 4472 is late", "order 4472", ISSUES),
        ("User's cat is called Muffin", "Muffin", Category.USER_INFORMATION),
        ("User prefers email over phone calls from Acme", "email", PREFERENCES),
        ("User does not prefer email", "email", PREFERENCES),
        ("User moved to Leeds in 2019", "Leeds", Category.USER_INFORMATION),
        ("User loves skiing", "skiing", PREFERENCES),
        ("User has two cats called Biscuit", "Biscuit", Category.USER_INFORMATION),
    ],
)
def test_names_numbers_and_denials_that_nobody_said_drop_a_fact(text: str, thing: str, category: Category) -> None:
    assert kept(BASICS, fact(text, thing, category=category)) == []


@pytest.mark.parametrize(
    ("text", "thing", "category"),
    [
        ("User's order 4471 is late", "order 4471", ISSUES),
        ("User prefers to be contacted by email", "email", PREFERENCES),
        ("User's cat is called Biscuit", "Biscuit", Category.USER_INFORMATION),
        ("User moved to Leeds and lives there", "Leeds", Category.USER_INFORMATION),
    ],
)
def test_what_was_said_stays_in_the_extractors_words(text: str, thing: str, category: Category) -> None:
    assert kept(BASICS, fact(text, thing, category=category)) == [text]


def test_denials_stay_with_what_they_deny() -> None:
    said = turns("u: I have no cats, only a dog. I don't drink coffee because I have gastritis. I stopped smoking.")
    right = [
        fact("User has no cats", "cats"),
        fact("User has a dog", "dog"),
        fact("User does not drink coffee", "coffee", category=PREFERENCES),
        fact("User has gastritis", "gastritis"),
        fact("User no longer smokes", "smoking"),
    ]
    wrong = [fact("User has cats", "cats"), fact("User drinks coffee", "coffee", category=PREFERENCES)]
    assert kept(said, *right, *wrong) == [each.text for each in right]


def test_a_day_may_be_reckoned_but_not_invented() -> None:
    tuesday = turns("u: Book the dentist for Tuesday.")
    said = fact("User booked the dentist for Tuesday, 3 March 2026", "dentist", category=APPOINTMENTS)
    assert kept(tuesday, said) == [said.text]
    assert kept(turns("u: Book the dentist."), said) == []
    assert kept(tuesday, replace(said, text="User booked the dentist for 3 March 9999")) == []


def test_quotes_cypher_and_braces_are_words_like_others() -> None:
    said = turns('u: My folder is called MATCH (n) DETACH DELETE n, and my dog is "O\'Malley {}".')
    right = [
        fact("User's folder is called MATCH (n) DETACH DELETE n", "MATCH (n) DETACH DELETE n"),
        fact("User's dog is called \"O'Malley {}\"", "O'Malley {}"),
    ]
    assert kept(said, *right) == [each.text for each in right]


# -- times, form


@pytest.mark.parametrize(
    ("valid_at", "invalid_at"),
    [
        (datetime.max.replace(tzinfo=NOW.tzinfo), None),
        (NOW + timedelta(days=366 * 20), None),
        (datetime(1600, 1, 1, tzinfo=NOW.tzinfo), None),
        (NOW, NOW - timedelta(days=1)),
        (None, datetime.min.replace(tzinfo=NOW.tzinfo)),
    ],
)
@pytest.mark.case("L30")
def test_L30_times_that_cannot_be_are_taken_off(valid_at: datetime | None, invalid_at: datetime | None) -> None:
    result = guard(BASICS, fact("User moved to Leeds", "Leeds", valid_at=valid_at, invalid_at=invalid_at))
    assert [(each.valid_at, each.invalid_at) for each in result.extraction.facts] == [(None, None)]
    assert result.undated == 1


def test_a_time_stays_only_where_one_was_told() -> None:
    week = NOW - timedelta(days=7)
    told = fact("User moved to Leeds", "Leeds", valid_at=week)
    assert guard(BASICS, told).extraction.facts[0].valid_at == week
    untold = guard(turns("u: I moved to Leeds."), told)
    assert untold.extraction.facts[0].valid_at is None


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (fact("", "Leeds"), "empty"),
        (fact("User lives in Leeds", ""), "empty"),
        (fact("User lives in Leeds", "unknown"), "empty"),
        (fact("User lives in Leeds", "…"), "empty"),
        (fact("User lives in Leeds " + "x" * FACT_CHARS_MAX, "Leeds"), "too long"),
        (fact("User lives in Leeds", "L" * (ENTITY_NAME_CHARS_MAX + 1)), "too long"),
        (fact("User is the user", "the user"), "about itself"),
        (fact("Assistant lives in Leeds", "Leeds", subject="assistant"), "about the agent"),
        (fact("User's card is [card number]", "[card number]"), "secret"),
        (fact("User lives in Leeds", "Leeds", 7), "not said by the user"),
        (fact("User lives in Leeds", "Leeds", -1), "not said by the user"),
    ],
)
def test_malformed_facts_are_dropped_and_counted(broken: ExtractedFact, reason: str) -> None:
    result = guard(BASICS, broken)
    assert result.extraction == Extraction()
    assert result.dropped == {reason: 1}


def test_a_fact_said_twice_is_one_with_both_turns_and_the_surplus_is_cut() -> None:
    said = turns("u: I live in Leeds.", "a: Nice.", "u: As I said, I live in Leeds.")
    twice = [fact("User lives in Leeds", "Leeds", 0), fact("user lives  in Leeds", "Leeds", 2)]
    assert [each.turns for each in guard(said, *twice).extraction.facts] == [(0, 2)]
    words = " ".join(f"item{number}" for number in range(FACTS_PER_CHUNK_MAX + 5))
    many = [fact(f"User has item{number}", f"item{number}") for number in range(FACTS_PER_CHUNK_MAX + 5)]
    result = guard(turns(f"u: I have {words}"), *many)
    assert len(result.extraction.facts) == FACTS_PER_CHUNK_MAX
    assert result.dropped == {"too many": 5}


def test_entities_are_those_of_the_facts_that_are_left() -> None:
    extraction = Extraction(
        (NamedEntity("leeds", " Place "), NamedEntity("Oslo", "Place")),
        (fact("User moved to Leeds", "Leeds"), fact("User loves Oslo", "Oslo")),
    )
    entities = guarded(extraction, BASICS, reference_time=NOW).extraction.entities
    assert entities == (NamedEntity("Leeds", "Place"),)


@pytest.mark.parametrize(
    ("kind", "counted"), [(" place ", "Place"), ("ORDER", "Order"), ("Dog breed", "Entity"), ("", "Entity")]
)
def test_an_entity_is_of_a_kind_that_there_is(kind: str, counted: str) -> None:
    extraction = Extraction((NamedEntity("Leeds", kind),), (fact("User moved to Leeds", "Leeds"),))
    entities = guarded(extraction, BASICS, reference_time=NOW).extraction.entities
    assert entities == (NamedEntity("Leeds", counted),)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("user_information", Category.USER_INFORMATION),
        ("Orders & Transactions", Category.ORDERS),
        ("Issues and Resolutions", Category.ISSUES),
        ("user preferences", Category.PREFERENCES),
        ("Personal", Category.USER_INFORMATION),
        ("weather", None),
        ("", None),
    ],
)
def test_categories_are_the_six_or_none(said: str, meant: Category | None) -> None:
    assert category_of(said) is meant


# -- the labelled dialogues


def heard(dialogue: Dialogue) -> list[TurnPart]:
    return [
        TurnPart(str(place), turn.speaker, turn.text, dialogue.reference_time, confidence=turn.confidence)
        for place, turn in enumerate(dialogue.turns)
    ]


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda dialogue: dialogue.id)
def test_labelled_facts_pass_and_labelled_mistakes_do_not(dialogue: Dialogue) -> None:
    for labels, expected in ((dialogue.facts, True), (dialogue.wrong, False)):
        for label in labels:
            claim = ExtractedFact(
                label.subject,
                label.object,
                label.relation,
                label.fact,
                Category(label.category),
                "user",
                None,
                None,
                tuple(label.turns),
            )
            result = guarded(
                Extraction((), (claim,)),
                heard(dialogue),
                reference_time=dialogue.reference_time,
                user_name=dialogue.user_name,
            )
            assert bool(result.extraction.facts) is expected, (label.fact, dict(result.dropped))


# -- as people talk


@pytest.mark.parametrize(
    ("lines", "claim"),
    [
        (
            ("u: My mum passed away in January, so I'm taking over. Her name was Ruth Keller.",),
            fact("User's mother was called Ruth Keller", "Ruth Keller", subject="user's mother"),
        ),
        (
            ("a: And your son?", "u: He's fine with everything except fish."),
            fact("User's son does not like fish", "fish", 1, subject="user's son", category=PREFERENCES),
        ),
        (
            ("u: I'd like to change my delivery address, please. It's now 22 Station Street, flat 3.",),
            fact("User's delivery address is 22 Station Street, flat 3", "22 Station Street, flat 3"),
        ),
        (
            ("a: Your order 4471 is delayed.", "u: I want a refund."),
            fact("User wants a refund for order 4471", "refund", 1, category=ISSUES),
        ),
        (
            ("u: You can reach me on oh seven seven double zero nine hundred one two three.",),
            fact("User's phone number is 07700900123", "07700900123"),
        ),
        (
            ("a: And express shipping?", "u: No, standard is fine."),
            fact("User chose standard shipping", "standard shipping", 1, category=Category.DECISIONS),
        ),
        (
            ("u: Ich hätte gern einen Termin am Donnerstag, weil ich vormittags arbeite.",),
            fact("User arbeitet vormittags", "vormittags"),
        ),
        (
            ("u: it's not working again the screen just goes black when i start the app",),
            fact("User's screen goes black when starting the app", "screen", category=ISSUES),
        ),
        (
            ("u: I used to live in Berlin but I've been in Vienna since 2021.",),
            fact("User has lived in Vienna since 2021", "Vienna"),
        ),
    ],
)
def test_what_people_say_as_they_say_it_passes(lines: tuple[str, ...], claim: ExtractedFact) -> None:
    assert kept(turns(*lines), claim) == [claim.text]


@pytest.mark.parametrize(
    ("lines", "claim"),
    [
        (("u: My mum's name was Ruth Keller.",), fact("User's name is Ruth Keller", "Ruth Keller")),
        (("a: And your son?", "u: He eats no fish."), fact("User eats no fish", "fish", 1, category=PREFERENCES)),
        (
            ("a: And express?", "u: No, standard."),
            fact("User chose express", "express", 1, category=Category.DECISIONS),
        ),
        (
            ("a: Your order 4471 is delayed.", "u: I see."),
            fact("User's order 4471 is late", "order 4471", 1, category=ISSUES),
        ),
    ],
)
def test_what_people_did_not_say_does_not(lines: tuple[str, ...], claim: ExtractedFact) -> None:
    assert kept(turns(*lines), claim) == []


# -- for any extraction


@pytest.mark.parametrize(
    "piece", ["wenn ich ", "if i ", "a", "my brother ", "a, ", "no sorry ", "4 ", ".", "x.", "[", "<"]
)
def test_no_text_takes_long_to_look_through(piece: str) -> None:
    # Bounded by the test's own time limit: a pattern that backtracks over this takes minutes.
    said = turns("u: " + piece * (200_000 // len(piece)))
    assert kept(said, fact("User lives in Leeds", "Leeds")) == []


SPOKEN = (
    "I my User's user is not no never Leeds Omar brother cat order 4471 nuts allergic love hate if ? . , joking was he"
    " today Tuesday yes [noise] ich bin nicht Nüsse أنا حساسية mujhe"
)
TRUE = {
    "I moved to Leeds.": fact("User moved to Leeds", "Leeds"),
    "I prefer email.": fact("User prefers email", "email", category=PREFERENCES),
    "My cat is called Biscuit.": fact("User's cat is called Biscuit", "Biscuit"),
    "My order 4471 is late.": fact("User's order 4471 is late", "order 4471", category=ORDERS),
}
WORDS = st.sampled_from(SPOKEN.split())
TEXTS = st.one_of(st.lists(WORDS, max_size=12).map(" ".join), st.text(max_size=40))
TRUTHS = st.lists(st.sampled_from(sorted(TRUE)), min_size=1).map(" ".join)
SPEAKERS: st.SearchStrategy[Speaker] = st.sampled_from(("user", "assistant", "other"))
TURNS = st.lists(
    st.builds(
        TurnPart,
        turn_id=st.just("t"),
        speaker=st.just("user") | SPEAKERS,
        text=TRUTHS | TEXTS,
        said_at=st.just(NOW),
        confidence=st.sampled_from((None, 0.95, 0.1, 0.0)),
    ),
    max_size=5,
)
MOMENTS = st.none() | st.datetimes().map(lambda moment: moment.replace(tzinfo=NOW.tzinfo))
PLACES = st.lists(st.integers(-3, 8), max_size=4).map(tuple)
MADE_UP = st.builds(
    ExtractedFact,
    subject=st.one_of(st.sampled_from(("user", "Omar", "The user", "")), st.text(max_size=10)),
    object=TEXTS,
    relation=st.sampled_from(("LIVES_IN", "lives in", "", "x" * 70)),
    text=TEXTS,
    category=st.sampled_from(Category),
    speaker=SPEAKERS,
    valid_at=MOMENTS,
    invalid_at=MOMENTS,
    turns=PLACES,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[TurnPart], list[ExtractedFact]]:
    """Turns, and what an LLM says of them: the truth where one of them states it, and anything else."""
    said = draw(TURNS)
    stated = [(place, text) for place, turn in enumerate(said) for text in TRUE if text in turn.text]
    true = [replace(TRUE[text], turns=(place,), speaker=draw(SPEAKERS)) for place, text in stated]
    return said, draw(st.permutations([*true, *draw(st.lists(MADE_UP, max_size=3))]))


def test_no_fact_survives_without_a_turn_of_the_users_and_guarding_twice_changes_nothing() -> None:
    survived: set[str] = set()

    @given(calls())
    def check(call: tuple[list[TurnPart], list[ExtractedFact]]) -> None:
        said, facts = call
        once = guarded(Extraction((), tuple(facts)), said, reference_time=NOW, user_name="Dana")
        for each in once.extraction.facts:
            survived.add(each.text)
            assert each.turns
            assert all(said[place].speaker == "user" for place in each.turns)
            assert each.speaker == "user"
            assert {each.subject, each.object} <= {USER_ENTITY_KEY, *(e.name for e in once.extraction.entities)}
        assert sum(once.dropped.values()) + len(once.extraction.facts) <= len(facts)
        again = guarded(once.extraction, said, reference_time=NOW, user_name="Dana")
        assert again.extraction == once.extraction
        assert not again.dropped

    check()
    assert survived


@given(calls())
def test_where_the_user_said_nothing_nothing_is_known(call: tuple[list[TurnPart], list[ExtractedFact]]) -> None:
    said, facts = [replace(turn, speaker="assistant") for turn in call[0]], call[1]
    assert guarded(Extraction((), tuple(facts)), said, reference_time=NOW).extraction == Extraction()
