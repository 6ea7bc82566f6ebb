"""Merging: what becomes a new fact, what repeats one, what ends one, and who is meant."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memory.ingestion.applying import apply
from memory.ingestion.planning import plan
from memory.knowledge import USER_ENTITY_KEY, KnownFact
from memory.limits import ENTITY_NAME_CHARS_MAX, FACT_CHARS_MAX, FACTS_PER_CHUNK_MAX
from tests.support.talk import NOON, Memory, chunk, extracted, fact, judge, turn

LEEDS = ("LIVES_IN", "Leeds", "User lives in Leeds")
YORK = ("LIVES_IN", "York", "User lives in York")


def hear(memory: Memory, day: int, *facts: tuple[str, str, str], said: str = "…", **kwargs: object) -> None:
    """One call a day, one turn for each fact about the user."""
    turns = [turn(said, day=day, minute=place) for place in range(len(facts))]
    given = [fact("user", *one, turns=(place,)) for place, one in enumerate(facts)]
    memory.hear(f"s{day}", turns, extracted(*given), **kwargs)  # type: ignore[arg-type]


def only(memory: Memory, text: str) -> KnownFact:
    found = [one for one in memory.knowledge.facts if one.statement.text == text]
    assert len(found) == 1
    return found[0]


def test_a_first_call_needs_one_llm_call_and_makes_what_was_said() -> None:
    memory = Memory()
    hear(memory, 0, LEEDS, ("LIKES", "tea", "User likes tea"))
    assert memory.calls == 0
    assert memory.live().keys() == {"User lives in Leeds", "User likes tea"}
    assert {one.key for one in memory.knowledge.entities} == {USER_ENTITY_KEY, "leeds", "tea"}
    assert len(memory.knowledge.mentions) == 3
    one = only(memory, "User likes tea")
    assert one.statement.valid_at == one.statement.reference_time == NOON + timedelta(minutes=1)
    assert one.statement.turns == ("t0-1-user",)
    assert one.episodes == ("ep-s0-0",)
    assert memory.knowledge.episodes[0].fact_ids == tuple(one.id for one in memory.patches[0].facts)


def test_the_same_words_repeat_a_fact_and_need_no_llm() -> None:
    memory = Memory()
    hear(memory, 0, LEEDS)
    hear(memory, 1, ("LIVES_IN", "leeds", "user  lives in LEEDS."))
    one = only(memory, "User lives in Leeds")
    assert memory.calls == 0
    assert one.episodes == ("ep-s0-0", "ep-s1-0")
    assert [wording.statement.text for wording in memory.knowledge.wordings] == ["user lives in LEEDS."]
    assert one.live(NOON + timedelta(days=9))


def test_other_words_repeat_a_fact_if_the_llm_says_so() -> None:
    memory = Memory()
    hear(memory, 0, ("LIKES", "tea", "User likes tea"))
    says = judge(same=[("User likes tea", "User is fond of tea")])
    hear(memory, 1, ("IS_FOND_OF", "tea", "User is fond of tea"), judge=says)
    assert memory.calls == 1
    assert memory.live().keys() == {"User likes tea"}


@pytest.mark.parametrize(
    ("known", "new", "about"),
    [
        ("User has 2 dogs", "User has 3 dogs", "dogs"),
        ("User likes tea", "User does not like tea", "tea"),
        ("User met Bob", "User met Alice", "Alice"),
    ],
)
def test_an_llm_is_not_believed_that_other_numbers_denials_or_people_are_the_same(
    known: str, new: str, about: str
) -> None:
    memory = Memory()
    hear(memory, 0, ("X", known.split()[-1], known))
    hear(memory, 1, ("X", about, new), judge=judge(same=[(known, new)]))
    assert new in memory.live()
    assert not memory.knowledge.wordings


@pytest.mark.promise("P-current")
def test_P_current_a_correction_ends_the_old_fact_even_if_the_llm_omits_it() -> None:
    memory = Memory()
    hear(memory, 0, LEEDS)
    hear(memory, 1, YORK)
    assert memory.live().keys() == {"User lives in York"}
    old, new = only(memory, "User lives in Leeds"), only(memory, "User lives in York")
    assert old.invalid_at == new.statement.valid_at
    assert old.conflicts == (new.id,)
    assert new.conflicts == (old.id,)
    assert old.expired_at == memory.patches[1].episode.created_at
    assert memory.patches[1].episode.fact_ids == (new.id, old.id)


@pytest.mark.promise("P-current")
def test_P_current_an_llms_contradiction_ends_the_earlier_one_on_both_sides() -> None:
    memory = Memory()
    hear(memory, 0, ("WORKS_AT", "Acme", "User works at Acme"))
    says = judge(against=[("User works at Acme", "User joined Globex")])
    hear(memory, 1, ("WORKS_AT", "Globex", "User joined Globex"), judge=says)
    assert memory.live().keys() == {"User joined Globex"}


@pytest.mark.promise("P-current")
def test_P_current_of_two_values_in_one_call_the_last_wins() -> None:
    memory = Memory()
    hear(memory, 0, LEEDS, ("LIKES", "tea", "User likes tea"), YORK)
    assert memory.live().keys() == {"User lives in York", "User likes tea"}


@pytest.mark.promise("P-current")
def test_P_current_of_two_values_in_one_breath_the_last_wins() -> None:
    memory = Memory()
    midnight = NOON.replace(hour=0)
    facts = [fact("user", *one, valid_at=midnight) for one in (LEEDS, YORK)]
    memory.hear("s", [turn("In Leeds, no, York")], extracted(*facts))
    assert memory.live().keys() == {"User lives in York"}


@pytest.mark.promise("P-current")
def test_P_current_of_two_contradictions_in_one_call_the_last_wins() -> None:
    memory = Memory()
    says = judge(against=[("User works at Acme", "User joined Globex")])
    acme = ("WORKS_AT", "Acme", "User works at Acme")
    hear(memory, 0, acme, ("WORKS_AT", "Globex", "User joined Globex"), judge=says)
    assert memory.calls == 1
    assert memory.live().keys() == {"User joined Globex"}


@pytest.mark.parametrize("words", ["User lives in Leeds", "User moved back to Leeds"])
@pytest.mark.promise("P-current")
def test_P_current_who_moved_back_lives_there_again(words: str) -> None:
    memory = Memory()
    says = judge(same=[("User lives in Leeds", words)])
    hear(memory, 0, LEEDS)
    hear(memory, 1, YORK)
    hear(memory, 2, ("LIVES_IN", "Leeds", words), judge=says)
    live = memory.live()
    assert live.keys() == {words}
    assert live[words].statement.valid_at == NOON + timedelta(days=2)
    assert len(memory.knowledge.facts) == 3


def test_there_and_back_in_one_call() -> None:
    memory = Memory()
    hear(memory, 0, LEEDS, YORK, LEEDS)
    assert [one.statement.valid_at for one in memory.live().values()] == [NOON + timedelta(minutes=2)]
    assert len({one.id for one in memory.knowledge.facts}) == 3


@pytest.mark.case("L30")
@pytest.mark.promise("P-current")
def test_L30_P_current_three_days_of_nuts_and_sushi() -> None:
    memory = Memory()
    hear(memory, 0, ("ALLERGIC_TO", "nuts", "User is allergic to nuts"), said="I am allergic to nuts.")
    hear(memory, 1, ("ALLERGIC_TO", "nuts", "User is not allergic to nuts"), said="I was joking, I am not.")
    said = "Remember when I said I was allergic to nuts? Silly."
    hear(memory, 2, ("ALLERGIC_TO", "nuts", "User is allergic to nuts"), said=said)
    hear(memory, 3, ("LIKES", "sushi", "User loves sushi"))
    hear(memory, 4, ("DISLIKES", "sushi", "User hates sushi"))
    assert memory.live().keys() == {"User is not allergic to nuts", "User hates sushi"}
    allergic = only(memory, "User is allergic to nuts")
    assert (allergic.statement.valid_at, allergic.invalid_at) == (NOON, NOON + timedelta(days=1))
    assert [one.statement.text for one in memory.knowledge.facts if not one.live(NOON + timedelta(days=9))] != []


def test_who_is_allergic_after_all_is_so_again() -> None:
    memory = Memory()
    for day, text in enumerate(("is allergic", "is not allergic", "is allergic")):
        hear(memory, day, ("ALLERGIC_TO", "nuts", f"User {text} to nuts"), said="As I told you, I am.")
    assert [one.statement.valid_at for one in memory.live().values()] == [NOON + timedelta(days=2)]


@pytest.mark.case("L05")
def test_L05_what_somebody_else_takes_ends_nothing_of_the_user() -> None:
    memory = Memory()
    says = judge(against=[("User takes warfarin", "Zoe takes no medicines")])
    zoe = fact("Zoe", "TAKES", "medicines", "Zoe takes no medicines", speaker="other", turns=(1,))
    turns = [turn("I take warfarin"), turn("This is Zoe, I take none", minute=1, speaker="other")]
    memory.hear("s", turns, extracted(fact("user", "TAKES", "warfarin", "User takes warfarin"), zoe), says)
    assert memory.live().keys() == {"User takes warfarin", "Zoe takes no medicines"}
    brother = [fact("Omar", "FEARS", "dogs", "Omar is terrified of dogs")]
    memory.hear("s2", [turn("he is", day=1)], extracted(*brother))
    omar = next(one for one in memory.knowledge.entities if one.key == "omar")
    assert only(memory, "Omar is terrified of dogs").subject_id == omar.id


@pytest.mark.parametrize("name", ["I", "the user", "Dana", "DANA", "User"])
def test_the_user_is_one_node_whatever_they_are_called(name: str) -> None:
    memory = Memory()
    hear(memory, 0, ("HAS_NAME", "Dana", "User's name is Dana"))
    memory.hear("s1", [turn("I like tea", day=1)], extracted(fact(name, "LIKES", "tea", f"{name} likes tea")))
    user = next(one for one in memory.knowledge.entities if one.key == USER_ENTITY_KEY)
    assert only(memory, f"{name} likes tea").subject_id == user.id
    assert user.name == "User"
    assert {one.key for one in memory.knowledge.entities} == {USER_ENTITY_KEY, "dana", "tea"}


def test_a_name_that_came_with_the_call_is_the_users_too() -> None:
    memory = Memory()
    turns = [turn("Dana here. My sister likes me", name="Dana")]
    facts = [fact("Dana", "LIKES", "tea", "Dana likes tea"), fact("Mia", "SISTER_OF", "Dana", "Mia is Dana's sister")]
    memory.hear("s", turns, extracted(*facts))
    assert {one.key for one in memory.knowledge.entities} == {USER_ENTITY_KEY, "tea", "mia"}
    user = next(one for one in memory.knowledge.entities if one.key == USER_ENTITY_KEY)
    assert only(memory, "Mia is Dana's sister").object_id == user.id


def test_who_gives_another_name_has_that_one() -> None:
    memory = Memory()
    hear(memory, 0, ("HAS_NAME", "Dana", "User's name is Dana"))
    hear(memory, 1, ("HAS_NAME", "Zoe", "User's name is Zoe"))
    assert memory.live().keys() == {"User's name is Zoe"}


def test_a_fact_of_somebody_about_themself_is_left_out() -> None:
    memory = Memory()
    hear(memory, 0, ("IS", "me", "User is themself"), LEEDS)
    assert memory.live().keys() == {"User lives in Leeds"}


def test_a_name_alike_is_asked_about_and_kept_by_both_names() -> None:
    memory = Memory()
    hear(memory, 0, ("WORKS_AT", "Acme Widgets", "User works at Acme Widgets"))
    who = judge(who={"Acme Widgets Ltd": "Acme Widgets"})
    hear(memory, 1, ("LIKES", "Acme Widgets Ltd", "User likes the team of Acme Widgets Ltd"), judge=who)
    assert {one.key for one in memory.knowledge.entities} == {USER_ENTITY_KEY, "acme widgets"}
    mention = next(one for one in memory.knowledge.mentions if one.name == "Acme Widgets Ltd")
    assert mention.vector


def test_names_with_other_numbers_are_never_the_same() -> None:
    memory = Memory()
    hear(memory, 0, ("HAS", "order 12", "User has order 12"))
    hear(memory, 1, ("HAS", "order 13", "User has order 13"), judge=judge(who={"order 13": "order 12"}))
    assert {"order 12", "order 13"} <= {one.key for one in memory.knowledge.entities}


def test_a_fact_said_twice_in_a_call_has_both_turns() -> None:
    memory = Memory()
    hear(memory, 0, LEEDS, LEEDS)
    assert only(memory, "User lives in Leeds").statement.turns == ("t0-0-user", "t0-1-user")
    assert not memory.knowledge.wordings
    hear(memory, 1, LEEDS, LEEDS)
    assert [one.statement.turns for one in memory.knowledge.wordings] == [("t1-0-user", "t1-1-user")]


def test_a_fact_that_gets_an_end_is_told_anew() -> None:
    memory = Memory()
    hear(memory, 0, ("WORKS_AT", "Acme", "User works at Acme"))
    until = NOON + timedelta(days=10)
    ending = fact("user", "WORKS_AT", "Acme", "User works at Acme", invalid_at=until)
    memory.hear("s1", [turn("till the 10th", day=1)], extracted(ending))
    assert [one.invalid_at for one in memory.live(NOON + timedelta(days=2)).values()] == [until]


def test_a_repetition_of_what_was_ended_meanwhile_is_a_new_fact() -> None:
    memory = Memory()
    says = judge(
        same=[("User prefers email", "User wants to be mailed")],
        against=[("User wants to be called", "User wants to be mailed")],
    )
    hear(memory, 0, ("PREFERS", "email", "User prefers email"))
    hear(memory, 1, ("WANTS", "phone", "User wants to be called"))  # nobody said that this is against it
    hear(memory, 2, ("PREFERS", "email", "User wants to be mailed"), judge=says)
    assert memory.live().keys() == {"User wants to be mailed"}
    assert only(memory, "User prefers email").invalid_at == NOON + timedelta(days=1)


def test_small_talk_leaves_an_episode_and_asks_nobody() -> None:
    memory = Memory()
    patch = memory.hear("s", [turn("hi"), turn("hello", speaker="assistant", minute=1)], extracted())
    assert memory.calls == 0
    assert patch.episode.body == "User: hi\nAssistant: hello"
    assert patch.episode.name == "session_s_20260301T120000Z"
    assert patch.episode.source_description == "Voice conversation"
    assert (patch.facts, patch.entities, patch.mentions, patch.touched) == ((), (), (), ())
    assert plan(chunk("s"), [turn("hi")], extracted(), now=NOON).texts == ()


def test_a_patch_is_the_same_when_it_is_made_again_and_applied_again() -> None:
    memory, again = Memory(), Memory()
    for one in (memory, again):
        hear(one, 0, LEEDS)
        hear(one, 1, YORK, ("LIKES", "tea", "User likes tea"))
    assert memory.patches == again.patches
    assert apply(apply(memory.knowledge, memory.patches[1]), memory.patches[1]) == memory.knowledge


def test_too_much_is_cut() -> None:
    memory = Memory()
    facts = [
        fact("user", "LIKES", f"thing {place}" * 100, f"User likes {place} " + "x" * 5_000) for place in range(150)
    ]
    memory.hear("s", [turn("a lot")], extracted(*facts))
    assert len(memory.knowledge.facts) == FACTS_PER_CHUNK_MAX
    assert {len(one.statement.text) for one in memory.knowledge.facts} == {FACT_CHARS_MAX}
    assert max(len(one.name) for one in memory.knowledge.entities) <= ENTITY_NAME_CHARS_MAX


def test_blank_texts_and_places_of_no_turn_do_no_harm() -> None:
    memory = Memory()
    facts = [
        fact("user", "LIKES", " ", "User likes"),
        fact("", "LIKES", "tea", "likes tea"),
        fact("user", "LIKES", "tea", " \x00 "),
        fact("user", "LIKES", "jam", "User likes \ud83d jam", turns=(7, -1)),
    ]
    memory.hear("s", [turn("hm")], extracted(*facts))
    assert memory.live().keys() == {"User likes \ufffd jam"}
    assert memory.hear("s2", [], extracted(*facts)).facts == ()
