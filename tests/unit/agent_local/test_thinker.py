"""The thinker without a language model: it quotes what was said, never invents, and takes any text."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from livekit.agents import llm

from agent.local.extract import Said, is_question, split_block
from agent.local.thinker import ExtractiveLLM, think
from agent.local.words import GREETING
from memory.context.block import CLOSE, HEADING, LEAD, NOTICE, OPEN, prefix, render_block
from memory.models import Passage, Recall

TODAY = date(2026, 12, 3)
BISCUIT = "- (2026-11-28, said by the user) My dog is called Biscuit."
LYON = "- (2026-11-20, said by the user) I live in Lyon &amp; work at the hospital. Do you know Lyon?"
ORDER = "- (2025-10-01, said by the assistant) Your order 1234 was delayed."
ASKED = "- (2026-12-02, said by the user) What is my dog's name?"
KNOWN = "- (known since 2026-05-01) The user plays the piano."
ALLERGIC = "- (2026-12-02, said by the user) I am allergic to peanuts, says Dr. Jones &lt;jones@x&gt;."


def block(*lines: str) -> str:
    head = [OPEN, HEADING, f"{NOTICE} Today is {TODAY}.", LEAD]
    return "\n".join([*head, *lines, CLOSE, "", ""])


def ask(words: str, *lines: str, earlier: list[tuple[str, str]] | None = None) -> str:
    newest = (block(*lines) if lines else "") + words
    return think([("system", "Be kind."), *(earlier or []), ("user", newest)], TODAY)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is my dog called?", 'You told me on 28 November: "My dog is called Biscuit."'),
        ("what's the name of my pet", 'You told me on 28 November: "My dog is called Biscuit."'),
        ("Where do I live?", 'You told me on 20 November: "I live in Lyon & work at the hospital."'),
        (
            "Tell me what I'm allergic to.",
            'You told me yesterday: "I am allergic to peanuts, says Dr. Jones <jones@x>."',
        ),
        ("When was my order delayed?", 'I told you on 1 October 2025: "Your order 1234 was delayed."'),
    ],
)
def test_a_question_is_answered_with_what_was_said_and_when(question: str, answer: str) -> None:
    assert ask(question, ASKED, BISCUIT, LYON, ORDER, ALLERGIC) == answer


def test_other_words_than_it_was_said_in_get_the_memorys_first_line() -> None:
    answer = ask("Which animal shares my flat?", ASKED, BISCUIT, LYON)
    assert answer == 'The closest I remember is what you told me on 28 November: "My dog is called Biscuit."'


def test_a_question_is_never_the_answer() -> None:
    assert ask("What is my dog's name?", ASKED) == "I don't know anything about that. You have not told me."


def test_what_the_user_said_goes_before_what_the_agent_said() -> None:
    agents = "- (2026-11-28, said by the assistant) Your dog is called Max."
    assert "Biscuit" in ask("What is my dog called?", agents, BISCUIT)
    assert "Max" not in ask("What is my dog called?", agents, BISCUIT)


def test_knowing_nothing_is_said() -> None:
    assert ask("What is my dog called?") == "I don't know anything about that. You have not told me."


def test_this_conversation_is_quoted_too() -> None:
    earlier = [("user", "My sister is called Anna."), ("assistant", 'Noted: "My sister is called Anna."')]
    assert ask("What's my sister's name?", earlier=earlier) == 'You told me a moment ago: "My sister is called Anna."'
    assert "Lyon" in ask("Where do I live?", LYON, earlier=earlier)


def test_two_things_said_about_it_are_both_quoted() -> None:
    renamed = "- (2026-12-01, said by the user) We call the dog Max now; the name of the dog was Biscuit."
    answer = ask("What is the name of my dog?", renamed, BISCUIT)
    assert "Max" in answer
    assert answer.index("Max") < len(answer)


def test_what_do_you_know_about_me_lists_the_first_lines() -> None:
    answer = ask("What do you know about me?", BISCUIT, LYON, ASKED, ORDER, ALLERGIC)
    assert answer.count('"') == 6
    assert answer.startswith('You told me on 28 November: "My dog is called Biscuit." And you told me on 20')


CAT = "- (2026-11-28, said by the user) Hi! My cat is called Tiger"


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        # what the user said is there as well, in whatever order and however it was cut and repeated
        (
            ['- (2026-11-28, said by the assistant) Noted: "My cat is called Tiger."', CAT],
            'You told me on 28 November: "Hi! My cat is called Tiger."',
        ),
        (
            [
                '- (2026-12-01, said by the assistant) You told me on 28 November: "Hi! My cat is called Tiger." '
                "And you told me yesterday: \"My cat likes 'tuna'.\"",
                CAT,
                '- (2026-11-28, said by the assistant) Noted: "My cat is called Tiger."',
            ],
            'You told me: "My cat likes \'tuna\'." And you told me on 28 November: "Hi! My cat is called Tiger."',
        ),
        # only the reply was found
        (
            ['- (2026-12-02, said by the assistant) Noted: "My cat is called Tiger."'],
            'You told me yesterday: "My cat is called Tiger."',
        ),
        (
            [
                '- (2026-12-03, said by the assistant) You told me a moment ago: "My cat is called Tiger."',
                '- (2026-12-03, said by the assistant) The closest I remember is what you told me today: "Cats!"',
            ],
            'You told me today: "My cat is called Tiger." And you told me today: "Cats!"',
        ),
        # neither quotes of quotes, nor what has changed since, nor that nothing was known
        (
            [
                "- (2026-12-02, said by the assistant) I told you today: \"Noted: 'My cat is called Tiger.'.\"",
                "- (2026-12-02, said by the user, since changed) My cat is called Tom.",
                '- (2026-12-02, said by the assistant) Noted: "My cat is called Tom."',
                "- (2026-12-02, said by the assistant) I don't know anything about that. You have not told me.",
            ],
            "I don't know anything about that. You have not told me.",
        ),
    ],
)
def test_its_own_earlier_replies_are_told_as_what_they_quote_and_once(lines: list[str], answer: str) -> None:
    assert ask("What do you know about me?", *lines) == answer


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("I moved to Paris last week.", 'Noted: "I moved to Paris last week."'),
        ("Hi there. My name is Sarah and I have two kids.", 'Noted: "My name is Sarah and I have two kids."'),
        ("When I was young I lived in Oslo", 'Noted: "When I was young I lived in Oslo."'),
        ('I said "stop" twice', "Noted: \"I said 'stop' twice.\""),
        ("Hello!", GREETING),
        ("Thank you very much.", "You're welcome."),
        ("Thanks, bye.", "Goodbye."),
        ("Okay", "Okay."),
        ("", "I did not catch that. Please say it again."),
        ("…?!", "I did not catch that. Please say it again."),
    ],
)
def test_a_statement_is_acknowledged_by_its_key_part(statement: str, answer: str) -> None:
    assert ask(statement, BISCUIT) == answer


def test_a_long_statement_is_cut_at_a_word() -> None:
    answer = ask("I would like to tell you about my garden " + "and its flowers " * 50)
    assert len(answer) < 220
    assert answer.endswith('…"')


def test_without_a_word_of_the_user_it_greets() -> None:
    assert think([], TODAY) == GREETING
    assert think([("system", "Greet the user.")], TODAY) == GREETING


@pytest.mark.parametrize(
    ("sentence", "asks"),
    [
        ("Where do I live", True),
        ("do you remember my name", True),
        ("Tell me about my order.", True),
        ("And what was the number of my room", True),
        ("What color is my car", True),
        ("أين أسكن؟", True),
        ("Really?", True),
        ("When I was young I lived in Oslo.", False),
        ("My dog is called Biscuit.", False),
        ("How nice.", False),
        ("Will is my brother.", False),
    ],
)
def test_questions_are_told_from_statements(sentence: str, asks: bool) -> None:
    assert is_question(sentence) is asks


def test_the_block_is_taken_apart() -> None:
    lines, words = split_block(block(LYON, ORDER, KNOWN) + "And now?")
    assert words == "And now?"
    assert lines == [
        Said("I live in Lyon & work at the hospital. Do you know Lyon?", "user", date(2026, 11, 20)),
        Said("Your order 1234 was delayed.", "agent", date(2025, 10, 1)),
        Said("The user plays the piano.", "fact", date(2026, 5, 1)),
    ]


def test_a_fact_is_known_rather_than_told() -> None:
    assert ask("What do I play?", KNOWN) == 'I know since 1 May: "The user plays the piano."'


def test_the_block_of_the_memory_itself_is_understood() -> None:
    now = datetime(2026, 12, 3, tzinfo=UTC)
    passage = Passage(
        id="1", session_id="s", timestamp=datetime(2026, 11, 28, tzinfo=UTC), role="user", text="My dog is <Biscuit>."
    )
    rendered = prefix(render_block(Recall(passages=(passage,)), max_tokens=600, now=now), "Who is my dog?")
    assert think([("user", rendered)], TODAY) == 'You told me on 28 November: "My dog is <Biscuit>."'


@given(st.text(max_size=300))
def test_text_without_a_block_is_the_users_own(text: str) -> None:
    lines, words = split_block("x" + text)
    assert (lines, words) == ([], "x" + text)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text(max_size=60)), max_size=6))
def test_any_conversation_gets_a_printable_reply(messages: list[tuple[str, str]]) -> None:
    reply = think(messages, TODAY)
    assert reply.strip()
    assert not any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in reply)
    reply.encode()


def test_a_huge_turn_is_answered() -> None:
    assert ask("My garden is green. " * 20_000, BISCUIT).startswith("Noted: ")
    assert "Biscuit" in ask("Well, " * 40_000 + ". What is my dog called?", BISCUIT)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("words", ["hi" + "," * 100_000 + "x", "." * 100_000, "what " * 50_000, "a'b" * 50_000])
def test_no_text_takes_long(words: str) -> None:
    # A pattern that backtracks would take minutes here, a sound one milliseconds.
    assert ask(words, earlier=[("user", words)] * 100)


async def test_it_streams_word_by_word_with_usage_and_without_tools() -> None:
    context = llm.ChatContext.empty()
    context.add_message(role="system", content="Be kind.")
    context.add_message(role="user", content=[block(BISCUIT) + "What is my dog called?"])
    thinker = ExtractiveLLM(today=lambda: TODAY)
    words: list[str] = []
    usage: llm.CompletionUsage | None = None
    async with thinker.chat(chat_ctx=context, tools=None) as stream:
        async for chunk in stream:
            if chunk.delta is not None and chunk.delta.content:
                words.append(chunk.delta.content)
            usage = chunk.usage or usage
    assert "".join(words) == 'You told me on 28 November: "My dog is called Biscuit."'
    assert len(words) == 11
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 20


def test_it_says_what_it_is() -> None:
    thinker = ExtractiveLLM()
    assert (thinker.model, thinker.provider) == ("extractive", "local")
    assert thinker.notice == "extractive (no LLM configured)"
