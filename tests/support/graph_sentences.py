"""The sentences that the test LLM knows, in the third person, and how what somebody says of themselves becomes one.

English by rules, a few sentences of German, Spanish, French and Arabic by pattern. Above: graph_grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_CONTRACTIONS = (
    (r"\bcan't\b", "cannot"),
    (r"\bwon't\b", "will not"),
    (r"n't\b", " not"),
    (r"\bI'm\b", "I am"),
    (r"\b(I|we|they)'ve\b", r"\1 have"),
    (r"\b(I|we|they)'ll\b", r"\1 will"),
    (r"\b(he|she|it|that)'s\b", r"\1 is"),
)
_VERBS = (
    "prefer", "like", "love", "hate", "dislike", "live", "work", "want", "need", "take", "drink", "eat", "own", "speak",
    "play", "study", "drive", "use", "enjoy", "collect", "teach",
)  # fmt: skip
_ENDINGS = {"study": "studies", "teach": "teaches"}


def canonical(sentence: str) -> str:
    """``I'm allergic to my cat`` -> ``User is allergic to User's cat``; what is in the third person stays as it is."""
    text = sentence.replace("’", "'")
    for pattern, written in _CONTRACTIONS:
        text = re.sub(pattern, written, text, flags=re.IGNORECASE)
    for pattern, written in (
        (r"\bI am\b", "User is"),
        (r"\bI was\b", "User was"),
        (r"\bI have\b", "User has"),
        (r"\bI do not\b", "User does not"),
        *(
            (rf"\bI (really |now |always |still |only )?{verb}\b", rf"User \1{_ENDINGS.get(verb, verb + 's')}")
            for verb in _VERBS
        ),
        (r"\bI\b", "User"),
        (r"\b[Mm]y\b", "User's"),
        (r"\bme\b", "User"),
    ):
        text = re.sub(pattern, written, text)
    text = re.sub(r"\b(?:really|now|always|still|only|just) ", "", text)
    text = re.sub(r"^(cancel|book|reschedule|move|change) ", lambda m: f"User {_PAST[m[1].lower()]} ", text, flags=re.I)
    return re.sub(r"^the user\b", "User", text.strip(), flags=re.IGNORECASE)


_PAST = {"cancel": "cancelled", "book": "booked", "reschedule": "rescheduled", "move": "moved", "change": "changed"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """``relation`` and ``text`` are filled from the groups; without ``text`` it is the sentence. ``o``: the object."""

    regex: re.Pattern[str]
    relation: str
    category: str
    kind: str
    text: str = ""


_KIN = "brother|sister|mother|mum|mom|father|dad|wife|husband|partner|son|daughter|friend|boss|neighbour|colleague"
_NOBODY = "User|It|This|That|These|He|She|They|We|You|There|What|Who|Here"
_PARTS = {
    "@who": rf"(?:User|User's (?P<kin>{_KIN}) (?P<name>[A-Z]\w+)|(?P<name2>(?!(?:{_NOBODY})\b)[A-Z]\w+))",
    "@kin": f"(?P<k>{_KIN})",
    "@pet": "(?P<k>cat|dog|rabbit|horse|parrot|hamster)",
    "@day": r"(?P<o>(?:(?:next|this) )?(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day.*|tomorrow.*|(?:the )?\d.*"
    r"|[A-Z][a-z]+ \d.*)",
    "@numbered": r"(?:User's |The |the )?"
    r"(?P<o>(?:[Oo]rder|ticket|invoice|booking|parcel|claim) (?:number )?#?[\w-]*\d[\w-]*)",
    "@meeting": "(?:appointment|meeting|booking|visit)",
    "@gone": "(?: any ?more| any longer)?",
    "@o": "(?P<o>.+?)",
}
_CATEGORIES = {
    "info": "user_information",
    "like": "preferences",
    "issue": "issues_and_resolutions",
    "order": "orders_and_transactions",
    "date": "appointments",
    "choice": "decisions_made",
}

# Category, kind of the object, relation, pattern. ``k``: goes into the relation; ``w``: what an appointment is for.
_ENGLISH = r"""
info Place LIVES_IN             @who (?:(?:has )?(?:moved|relocated)(?: back)? to|lives? in|is living in) @o
info Place IS_FROM              @who is from @o
info Organization WORKS_AT      @who works? (?:at|for) @o
info Topic WORKS_AS             @who (?:works? as|is) an? (?P<o>pilot|nurse|teacher|engineer|doctor|driver|chef)
info Topic WORKS_AS             @who (?:works? as|is) an? (?P<o>student|lawyer|baker|plumber|designer|farmer)
info Topic AGE_IS               @who is (?P<o>\d+) years old
info Condition IS               @who is (?P<o>vegetarian|vegan|married|single|divorced|retired|diabetic|pregnant)
info Condition IS_NOT_ALLERGIC_TO  @who is (?:not|no longer) allergic to @o@gone
info Condition IS_ALLERGIC_TO   @who is (?:very |badly )?allergic to @o
info Topic FEARS                @who (?:is|was) (?:terrified|afraid|scared) of @o
info Topic DOES_NOT_TAKE        @who (?:does not take|takes no|no longer takes|has stopped taking) @o@gone
info Topic TAKES                @who takes @o
info Topic {k}                  @who (?P<k>speaks|plays|studies|drives|collects|teaches) @o
like Topic DISLIKES             @who (?:does not like|dislikes) @o@gone
like Topic HATES                @who (?:hates|cannot stand) @o
like Topic LOVES                @who loves @o
like Topic LIKES                @who (?:likes|enjoys) @o
like Topic PREFERS              @who (?:prefers|would rather have) @o
info Animal HAS_{k}             User's @pet(?:'s name)? (?:is|was) (?:called |named )?(?P<o>[A-Z]\w+)
info Person HAS_{k}             User's @kin(?:'s name)? is (?:called |named )?(?P<o>[A-Z]\w+)
info Person NAME_IS             User(?:'s name)? is (?:called |named )?(?P<o>[A-Z]\w+(?: [A-Z]\w+)?)
info Account HAS_{k}            User's (?:new )?(?P<k>email|phone|address|account)(?: number| address)? is @o
info Account HAS_{k}            User's (?P<k>birthday) is (?:on )?@o
issue Order RESOLVED_ISSUE_WITH  @numbered (?:is|was|has been) (?P<s>solved|resolved|delivered|fixed|refunded)
issue Order RESOLVED_ISSUE_WITH  @numbered (?:has )?arrived(?! broken| damaged| late).*
issue Order HAS_ISSUE_WITH      @numbered (?:is|has|was|arrived|did|went|never) ?(?P<s>.+)
issue Product RESOLVED_ISSUE_WITH  User's (?P<o>[\w -]+?) (?:is|has been) (?:fixed|repaired|solved|working again)
issue Product RESOLVED_ISSUE_WITH  User's (?P<o>[\w -]+?) works again
issue Product HAS_ISSUE_WITH    User's (?P<o>[\w -]+?) is (?:broken|slow|leaking|down|offline)
issue Product HAS_ISSUE_WITH    User's (?P<o>[\w -]+?) (?:does not work|keeps \w+|has stopped working|will not \w+)
issue Topic HAS_ISSUE_WITH      User cannot (?P<o>log in|sign in|connect|pay)(?: .*)?
order Product ORDERED           User (?:has )?(?:ordered|bought) @o
order Topic PAID                User (?:has )?paid @o
order Product RETURNED          User (?:has )?(?:returned|sent back) @o
date Date CANCELLED_APPOINTMENT_ON  User cancelled (?:the|User's) (?:(?P<w>\w+) )?@meeting (?:on|for) @day
date Date HAS_APPOINTMENT_ON    User (?:has |booked ){1,2}(?:an?|the) (?:(?P<w>[\w' ]+?) )?@meeting (?:on|for) @day
date Date HAS_APPOINTMENT_ON    User (?:has |booked ){1,2}(?:an?|the) @meeting with (?P<w>[\w. ]+?) (?:on|for) @day
date Date HAS_APPOINTMENT_ON    User (?:has |booked ){1,2}(?:a|the) (?P<w>table) (?:on|for) @day
date Date HAS_APPOINTMENT_ON    User's (?:(?P<w>[\w' ]+?) )?@meeting is (?:on )?@day
date Date HAS_APPOINTMENT_ON    User (?:moved|rescheduled|changed) (?:the|User's) (?:(?P<w>\w+) )?@meeting to @day
choice Topic DECIDED_ON         User (?:has )?decided (?:to|on|against) @o
choice Topic DECIDED_ON         User (?:has )?(?:chose|chosen|agreed to|will go with|will take) @o
choice Topic CANCELLED          User cancelled (?:the |User's )?@o
info Topic HAS_NO               @who has no @o@gone
info Topic HAS                  @who has (?P<o>(?:an? |\d+ |two |three |four )[\w' -]+)
"""

# The same, and how it is written.
_OTHERS = r"""
info Place LIVES_IN             (?:ich wohne|ich lebe|User wohnt|User lebt) in @o -> User wohnt in {o}
info Place LIVES_IN             (?:ich bin|User ist) (?:jetzt )?nach @o gezogen -> User ist nach {o} gezogen
info Condition IS_NOT_ALLERGIC_TO ich bin nicht (?:mehr )?allergisch gegen @o -> User ist nicht allergisch gegen {o}
info Condition IS_NOT_ALLERGIC_TO User ist nicht (?:mehr )?allergisch gegen @o
info Condition IS_ALLERGIC_TO   (?:ich bin|User ist) allergisch gegen @o -> User ist allergisch gegen {o}
info Animal HAS_CAT             (?:meine|Users) katze hei(?:ß|ss)t @o -> Users Katze heißt {o}
info Animal HAS_DOG             (?:mein|Users) hund hei(?:ß|ss)t @o -> Users Hund heißt {o}
info Person HAS_BROTHER         (?:mein|Users) bruder hei(?:ß|ss)t @o -> Users Bruder heißt {o}
info Person HAS_WIFE            (?:meine|Users) frau hei(?:ß|ss)t @o -> Users Frau heißt {o}
info Person NAME_IS             (?:ich hei(?:ß|ss)e|mein name ist|User hei(?:ß|ss)t) @o -> User heißt {o}
like Topic PREFERS              (?:ich bevorzuge|User bevorzugt) @o -> User bevorzugt {o}
like Topic HATES                (?:ich hasse|User hasst) @o -> User hasst {o}
like Topic LIKES                (?:ich (?:mag|liebe)|User mag) @o -> User mag {o}
issue Order HAS_ISSUE_WITH      (?:meine|Users) (?P<o>bestellung \d+) ist (?P<s>.+) -> Users {o} ist {s}
date Date HAS_APPOINTMENT_ON    (?:ich habe|User hat) einen termin am @o -> User hat einen Termin am {o}
info Place LIVES_IN             (?:vivo|User vive) en @o -> User vive en {o}
info Condition IS_NOT_ALLERGIC_TO  (?:User )?(?:ya )?no (?:soy|es) alérgic[oa] a @o -> User ya no es alérgico a {o}
info Condition IS_ALLERGIC_TO   (?:soy|User es) alérgic[oa] a @o -> User es alérgico a {o}
info Person NAME_IS             (?:me llamo|User se llama) @o -> User se llama {o}
like Topic PREFERS              (?:prefiero|User prefiere) @o -> User prefiere {o}
info Animal HAS_CAT             (?:mi gato|el gato de User) se llama @o -> El gato de User se llama {o}
info Person HAS_SISTER          (?:mi hermana|la hermana de User) se llama @o -> La hermana de User se llama {o}
info Place LIVES_IN             (?:j'habite|User habite) (?:à|a|en) @o -> User habite à {o}
info Condition IS_ALLERGIC_TO   (?:je suis|User est) allergique aux? @o -> User est allergique aux {o}
like Topic PREFERS              (?:je préfère|User préfère) @o -> User préfère {o}
info Place LIVES_IN             (?:انا |أنا |User )?(?:اسكن|أسكن|اعيش|أعيش|يسكن) في @o -> User يسكن في {o}
info Condition IS_ALLERGIC_TO   (?:عندي|لدي|User لديه) حساسية من @o -> User لديه حساسية من {o}
info Person NAME_IS             (?:اسمي|User اسمه) @o -> User اسمه {o}
info Place LIVES_IN             (?:main|User) @o (?:mein|me) (?:rehta|rehti) (?:hoon|hun|hai) -> User {o} mein rehta hai
"""


@lru_cache(maxsize=1)
def patterns() -> tuple[Pattern, ...]:
    """All of them, in the order in which they are tried."""
    return (*(_pattern(line) for line in _lines(_ENGLISH)), *(_pattern(line, re.I) for line in _lines(_OTHERS)))


def _lines(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.strip()]


def _pattern(line: str, flags: re.RegexFlag = re.NOFLAG) -> Pattern:
    category, kind, relation, rest = line.split(maxsplit=3)
    regex, _, text = rest.partition(" -> ")
    for part, meant in _PARTS.items():
        regex = re.sub(rf"{part}\b", lambda _, meant=meant: meant, regex)  # type: ignore[misc]
    return Pattern(re.compile(regex, flags), relation, _CATEGORIES[category], kind, text)


_UNITS = {"day": 1, "week": 7, "month": 30, "year": 365}
_COUNTS = {"a": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_AGO = re.compile(r",? (?P<count>\d+|a|one|two|three|four|five|six) (?P<unit>day|week|month|year)s? ago\b", re.I)
_LAST = re.compile(r",? last (?P<unit>week|month|year)\b", re.I)
_YESTERDAY = re.compile(r",? yesterday\b", re.I)
_SINCE = re.compile(rf",? (?:since|in) (?:(?P<month>{'|'.join(_MONTHS)}) ?)?(?P<year>(?:19|20)\d\d)\b", re.I)
_SINCE_MONTH = re.compile(rf",? since (?P<month>{'|'.join(_MONTHS)})\b", re.I)
_UNTIL = re.compile(r",? until (?P<date>\d{4}-\d\d-\d\d)\b", re.I)


def times(sentence: str, now: datetime) -> tuple[str, str | None, str | None]:
    """The sentence without what it says of from when and until when, and those two, in ISO 8601."""
    valid: datetime | None = None
    if match := _AGO.search(sentence):
        count = _COUNTS.get(match["count"].lower()) or int(match["count"])
        valid = _midnight(now - timedelta(days=count * _UNITS[match["unit"].lower()]))
    elif match := _LAST.search(sentence):
        valid = _midnight(now - timedelta(days=_UNITS[match["unit"].lower()]))
    elif match := _YESTERDAY.search(sentence):
        valid = _midnight(now - timedelta(days=1))
    elif match := _SINCE.search(sentence):
        valid = datetime(int(match["year"]), _month(match["month"]), 1, tzinfo=UTC)
    elif match := _SINCE_MONTH.search(sentence):
        month = _month(match["month"])
        valid = datetime(now.year - (month > now.month), month, 1, tzinfo=UTC)
    if match:
        sentence = sentence[: match.start()] + sentence[match.end() :]
    until = _UNTIL.search(sentence)
    if until:
        sentence = sentence[: until.start()] + sentence[until.end() :]
    return sentence, _iso(valid) if valid else None, f"{until['date']}T00:00:00Z" if until else None


def _month(name: str | None) -> int:
    return _MONTHS.index(name.lower()) + 1 if name else 1


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
