"""Who has the phone: which of the user's turns somebody else speaks, because the call was handed over.

Transcripts don't tell voices apart; people say who they are. Above: assertions. Below: lexicon, knowledge.
"""

from __future__ import annotations

from collections.abc import Sequence

from memory.ingestion.lexicon import any_of
from memory.knowledge import TurnPart, name_key
from memory.retrieval.text import fold

# By name, hence on the text as it is: "this is Zoe now", never "this is fine now".
_TAKES_OVER = any_of(
    r"""
    \b[Tt]his is [A-Z][\w'-]+(?: [A-Z][\w'-]+)?,? (?:now|speaking now|taking over)\b
    \b(?:[Ii]t's|[Hh]ere's|[Hh]ere is) [A-Z][\w'-]+(?: [A-Z][\w'-]+)? (?:now|here now|speaking)\b
    \b[Yy]ou(?:'re| are) (?:now )?(?:speaking|talking) (?:to|with) [A-Z][\w'-]+(?: [A-Z][\w'-]+)? now\b
    \b[Yy]ou(?:'re| are) now (?:speaking|talking) (?:to|with) [A-Z][\w'-]+
    \b[A-Z][\w'-]+ (?:here|speaking) now\b
    \b(?:[Hh]ier (?:ist|spricht) jetzt|[Jj]etzt (?:ist|spricht)(?: hier)?) [A-Z][\w'-]+
    \b[Aa]hora (?:habla|le habla|soy) [A-Z][\w'-]+
    \b[Cc]'est [A-Z][\w'-]+ (?:maintenant|à l'appareil)
    """
)
_INTRODUCES = any_of(
    r"""
    \b(?:[Tt]his is|[Mm]y name is|[Mm]y name's|I'm called) (?P<en>[A-Z][\w'-]+)
    \b(?:[Hh]ier (?:ist|spricht)|[Mm]ein Name ist|[Ii]ch heiße) (?P<de>[A-Z][\w'-]+)
    \b(?:[Mm]e llamo|[Mm]i nombre es|[Hh]abla) (?P<es>[A-Z][\w'-]+)
    \b(?:[Jj]e m'appelle|[Mm]on nom est) (?P<fr>[A-Z][\w'-]+)
    """
)
# Folded from here on.
_OF_THEIRS = any_of(
    r"""
    \b(?:i'm|i am|this is) (?:his|her|their|\w+'s) (?:wife|husband|partner|son|daughter|mother|mum|father|dad|\
      sister|brother|\
      carer|assistant|friend)\b
    \bich bin (?:seine?|ihre?) (?:frau|mann|sohn|tochter|mutter|vater|schwester|bruder|assistent\w*)\b
    \bsoy su (?:esposa|esposo|mujer|marido|hijo|hija|madre|padre|hermana|hermano)\b
    \bje suis (?:sa|son) (?:femme|mari|fils|fille|mere|pere|soeur|frere)\b
    \bمعكم? (?!انا)\w+ الان
    \bab (?:main )?\w+ bol rah[ai]\b
    """
)
_ANNOUNCES = any_of(
    r"""
    \b(?:put|putting|hand|handing|pass|passing|give|giving) (?:you |the phone |this |it )?(?:over |on |\
      back )*(?:to |on to )?my \w+\
      (?: on\b| over\b| now\b|[.!]|$)
    \b(?:speak|talk) to my \w+(?: now| instead| herself| himself|[.!]|$)|\bhere(?:'s| is) my \w+[.!,]? ?(?:now|$)
    \bich (?:gebe|reiche) (?:\w+ ){0,3}(?:an )?meine[nmr]?\b|\b(?:le|te) paso (?:a|con) mi\b|\
      \bje vous passe m(?:on|a)\b
    (?:ساعطيك|خذ|كلم) (?:زوجتي|زوجي|امي|ابي|ابني|ابنتي|اخي|اختي)
    \b(?:phone|baat) (?:\w+ ){0,2}(?:deta|deti|karo|kar lo|karaata|karaati)\b
    """
)
_IS_BACK = any_of(
    r"""
    \b(?:it's|it is) me (?:again|now)\b|\bi(?:'m| am) back\b|\bme again\b|\bback to me\b
    \bich bin(?:'s| es)? wieder\b|\bwieder ich\b|\bsoy yo (?:otra vez|de nuevo)\b|\bya estoy de vuelta\b
    \bc'est (?:encore|de nouveau) moi\b|\bje suis de retour\b|انا مره اخري|\bmain (?:wapas|hi hoon)\b
    """
)


def spoken_by_others(turns: Sequence[TurnPart], user_name: str = "") -> frozenset[int]:
    """Places of turns with the user's label that somebody else says: from where they take over until the user is back.

    Somebody who introduces themselves after the user has spoken, by another name than the user's, has taken over.
    """
    others: set[int] = set()
    own = set(name_key(user_name).split())
    away = announced = spoken = False
    for place, turn in enumerate(turns):
        if turn.speaker != "user":
            continue
        folded, name = fold(turn.text), _introduced(turn.text)
        if _IS_BACK.search(folded) or name in own:
            away = False
        elif (
            announced
            or _TAKES_OVER.search(turn.text)
            or _OF_THEIRS.search(folded)
            or (name and spoken and own and name not in own)
        ):
            away = True
        if away:
            others.add(place)
        elif name:
            own.add(name)
        announced = not away and _ANNOUNCES.search(folded) is not None
        spoken = True
    return frozenset(others)


def _introduced(text: str) -> str:
    """The first name, as a key, by which the speaker introduces themselves."""
    match = _INTRODUCES.search(text)
    return name_key(next(filter(None, match.groups()))) if match else ""
