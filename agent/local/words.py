"""English word lists of the extractive thinker: what asks, what carries no meaning, what means the same.

Above: extract. Below: nothing.
"""

from __future__ import annotations

import re

_DOES = "is|are|was|were|am|do|does|did|can|could|would|will|should|have|has|had"
QUESTION = re.compile(
    rf"""(?:(?:and|but|so|okay|ok|hey|hi|hello|well|please)[,\s]+)*
    (?:tell\ me|remind\ me|do\ you\ (?:know|remember|recall)|(?:can|could|would|will)\ you\ (?:tell|remind)
    |i\ (?:forgot|forget|wonder)\ (?:what|who|where|when|which|how|my)
    |(?:what|who|where|when|why|how|which)(?:['’]?s|['’]re)\b
    |(?:what|who|whose|where|why|how|which)\ (?:\S+\ ){{0,3}}?(?:{_DOES})\b
    |when\ (?:{_DOES})\b
    |(?:{_DOES})\ (?:i|you|we|he|she|they|it|my|your|our|his|her|their|the|there|this|that)\b)
    """,
    re.IGNORECASE | re.VERBOSE,
)


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS = _set(
    """
    a about again ago all also am an and any anything are as at be been before but by can could did do does doing
    earlier else ever for from had has have he her hers hey hi hello him his how i if in into is it its just know last
    let many may me might mine much my myself now of off oh ok okay on or our ours please recall remember remind
    said say says shall she should so some something such talk talked tell than thank thanks that the their them then
    there these they thing things this those time to told too um uh up us very was we well were what when where which
    while who whom whose why will with would yes you your yours yourself no not don't doesn't didn't isn't wasn't i'm
    i've i'd you're what's who's where's when's how's that's it's
    """
)

_GROUPS = (
    "nam call",
    "liv hom address mov resid",
    "work job occupation profession employ",
    "dog puppy pet",
    "cat kitten pet",
    "mother mum mom",
    "father dad",
    "child kid children son daughter",
    "birthday born birth",
    "favourit favorit lov prefer best",
    "doctor physician gp",
    "phon number mobil",
    "car vehicl",
    "allergy allergic",
    "medicin medication pill tablet drug",
    "appointment meet visit",
)
# Stem -> the stems that may stand for it.
SAME_MEANING: dict[str, frozenset[str]] = {}
for _group in _GROUPS:
    for _word in _group.split():
        SAME_MEANING[_word] = SAME_MEANING.get(_word, frozenset()) | frozenset(_group.split()) - {_word}

_THERE = r"(?:\s+(?:there|again|everyone|agent|assistant))?[,\s]*"
_GREETING = rf"(?:hi|hey|hello|good\ (?:morning|afternoon|evening)){_THERE}"
GREETING = "Hello. Tell me something, or ask me what you told me before."
# Whole utterances that say nothing to note down.
_BYE = r"(?:good)?bye(?:\W+bye)?|see\ you(?:\ (?:later|soon))?"
_THANKS = r"(?:many\ )?thank(?:s|\ you)(?:\ (?:so\ much|very\ much|a\ lot|again))?"
_YES_NO = r"yes|yeah|yep|no|nope|ok|okay|sure|right|alright|all\ right|fine|great|good|uh|um|hm+"
SMALL_TALK = tuple(
    (re.compile(rf"\W*(?:{pattern})\W*", re.IGNORECASE | re.VERBOSE), courtesy)
    for pattern, courtesy in (
        (rf"(?:{_GREETING}\W*)+", GREETING),
        (rf"(?:(?:ok|okay|{_THANKS})\W+)*(?:{_BYE})", "Goodbye."),
        (_THANKS, "You're welcome."),
        (_YES_NO, "Okay."),
    )
)
