"""What a transcript holds that nobody meant to say: fillers, captions that speech-to-text invents, machines, the TV.

Turns are looked at one by one (``is_noise``) and in their company (``unheard``). Languages: English, German, Spanish,
French, Italian, Portuguese, Arabic, Hindi and Urdu (both scripts), and the captions of some more.
Above: extraction, guards. Below: retrieval.text (folding), knowledge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from memory.knowledge import TurnPart
from memory.retrieval.text import fold

CONFIDENCE_MIN = 0.4  # of a transcript, for it to be a source; accents bring good ones down to about 0.6
_LOOP_MIN = 5  # a word said so often in a row is a recogniser that hangs
_SHORT_CHARS = 200  # captions and fillers are short; a long turn that quotes one is speech

# Bounded, or a turn of nothing but opening brackets would be gone through once for each.
_MARKED = re.compile(r"\[[^\[\]]{0,80}\]|\([^()]{0,80}\)|\*[^*]{0,80}\*|<[^<>]{0,80}>|♪[^♪]{0,200}♪?|♫")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


def _any(alternatives: str) -> re.Pattern[str]:
    """One pattern a line."""
    return re.compile("|".join(f"(?:{line.strip()})" for line in alternatives.splitlines() if line.strip()))


# All below is folded (text.fold): lower case, no accents, one form of each Arabic letter.
_FILLER_WORDS = """
um umm uh uhh uhm erm er hm hmm hmmm mm mmm mhm mmhmm mm-hm mm-hmm uh-huh uhhuh huh ah ahh oh ooh eh hmpf
ahm ahem hah tja naja hm-hm este pues bueno euh ben bah hein bof beh boh eee ehm achha haan-haan hmm-hmm
اه امم ممم يعني هممم اها ايه हम्म अं हां-हां हूँ
"""
_FILLERS = frozenset(_FILLER_WORDS.split())

_GHOSTS = _any(
    r"""
    (?:thanks?|thank you)(?: so much| very much)? for (?:watching|viewing|listening to (?:this|my|our))
    (?:please )?(?:like|share),? and subscribe|please subscribe|don't forget to subscribe
    subscribe to (?:my|our) channel
    see you (?:in the )?next (?:video|episode)|subtitles? by|captions? by|transcri(?:bed|ption) by
    amara\.? ?org|opensubtitles|copyright (?:wdr|swr|zdf|ard)|^www\.\S+\.(?:com|org|tv)$
    (?:vielen dank|danke) fur(?:s| das) (?:zuschauen|zuhoren)
    untertitel(?:ung)? (?:des|von|der|im auftrag)|bis zum nachsten video|abonniert? (?:den|meinen|unseren) kanal
    gracias por (?:ver|mirar) (?:el|este) video|suscri(?:bete|banse) al canal|subtitulos (?:realizados|por|creados)
    merci d'avoir regarde|sous-titr(?:es|age) (?:realises|par|st')|abonnez-vous|n'oubliez pas de vous abonner
    sottotitoli (?:creati|e revisione)|grazie per (?:la visione|aver guardato)|iscriviti al canale
    legendas? pela|obrigad[oa] por assistir|inscreva-se
    ترجمه نانسي|اشتركوا? (?:في|بال) ?ال?قناه|شكرا (?:علي|لكم علي|لل) ?ال?(?:مشاهده|متابعه)
    देखने के लिए धन्यवाद|चैनल को सब्सक्राइब|dekhne ke liye (?:dhanyava+d|shukriya)|channel ko subscribe
    ご視聴ありがとう|チャンネル登録|字幕(?:by|由|志愿)|请不吝点赞|謝謝觀看|谢谢观看|시청해 ?주셔서|구독과
    продолжение следует|субтитры (?:с?делал|создавал|подогнал)|спасибо за просмотр|подписывайтесь
    izlediginiz icin tesekkur|altyazi m\.?k|napisy stworzone
    """
)

_MACHINES = _any(
    r"""
    you(?:'ve| have) reached (?!a |an |the (?:end|limit|point))|(?:after|at) the (?:tone|beep)\b
    (?:^|please |just |so |and |[.,] ?)leave (?:me |us )?(?:a (?:short )?(?:message|voicemail)|your name)
    (?:can't|cannot|can not|unable to) (?:come to the phone|take your call|answer your call|get to the phone)
    (?:number|person|party) you (?:have|are) (?:dialled|dialed|called|calling|trying)
    mailbox belonging to|voice ?mail(?:box)? (?:of|for) (?!me\b)|your call (?:is important|has been forwarded)
    please (?:hold|stay on) the line|your call may be recorded|this call (?:may|will) be (?:recorded|monitored)
    press (?:\d|one|two|three|zero|the (?:star|hash|pound))\b|to return to the main menu
    sie (?:haben die mailbox|sind verbunden mit)|hinterlassen sie (?:uns |mir )?(?:bitte )?(?:eine|ihre)
    nach dem (?:signalton|piep)|die mailbox von|(?:teilnehmer|rufnummer) ist (?:nicht|zur ?zeit)|kein anschluss unter
    deje? (?:su|tu|un) mensaje|despues (?:de la senal|del tono)|buzon de voz de
    laisse[zr] (?:moi |nous )?(?:un|votre) message|apres le (?:bip|signal)
    vous etes (?:bien )?sur (?:la messagerie|le repondeur)|repondeur de
    lasci(?:ate)? un messaggio|dopo il segnale|deixe (?:sua|uma|a sua) mensagem|apos o sinal
    اترك رسالت?[هك]|بعد (?:سماع )?الصافره|الرقم الذي طلبته
    beep ke baad|(?:sandesh|paigham|message) chhod(?:en|iye|ein)|बीप के बाद|संदेश छोड़
    """
)

_TELEVISION = _any(
    r"""
    \bthat was(?: just| only)? (?:the|my|our) (?:tv|telly|television|radio)\b
    \b(?:that's|it's|it was) (?:just|only) (?:the|my|our) (?:tv|telly|television|radio)\b
    \b(?:ignore|don't mind|never mind) the (?:tv|telly|television|radio)\b
    \b(?:tv|telly|television|radio) (?:is|was) (?:on )?in the background\b
    \bdas war (?:nur )?(?:der fernseher|das radio|im fernsehen)
    \b(?:eso )?(?:fue|era|es) (?:solo )?la (?:tele|tv|radio|television)\b
    \bc'(?:etait|est) (?:juste |seulement )?la (?:tele|radio|television)\b
    (?:كان|هذا|هذه) (?:صوت )?(?:التلفزيون|التلفاز|الراديو)
    \b(?:tv|radio) (?:chal raha|ki awa+z|ki aa?va+z)
    """
)


def is_noise(turn: TurnPart) -> bool:
    """Whether a turn says nothing by itself: barely recognised, fillers alone, marks such as "[noise]", captions that a
    recogniser makes of silence, a word in a loop. Typed turns are never misheard, but may be fillers.

    A confidence of 0.0 is what recognisers give that have none.
    """
    if turn.mode == "voice" and turn.confidence and turn.confidence < CONFIDENCE_MIN:
        return True
    folded = fold(_MARKED.sub(" ", turn.text)).replace("\N{EM DASH}", " ")
    words = _WORD.findall(folded)
    if all(word in _FILLERS for word in words) or _loops(words):
        return True
    return turn.mode == "voice" and len(folded) <= _SHORT_CHARS and _GHOSTS.search(folded) is not None


def _loops(words: Sequence[str]) -> bool:
    return len(words) >= _LOOP_MIN and len(set(words)) == 1


def unheard(turns: Sequence[TurnPart]) -> frozenset[int]:
    """Places of user turns that are no words of the user's: noise, a machine's announcement and what surrounds it, and
    what the user says was the television."""
    own = [place for place, turn in enumerate(turns) if turn.speaker == "user"]
    found = {place for place in own if is_noise(turns[place])}
    for run in _runs(own):
        if any(turns[place].mode == "voice" and _MACHINES.search(fold(turns[place].text)) for place in run):
            found.update(run)
    for before, place in pairwise(own):
        if _TELEVISION.search(fold(turns[place].text)):
            found.update((before, place))
    return frozenset(found)


def _runs(places: Iterable[int]) -> list[list[int]]:
    """User turns with nobody else's between them: one announcement comes as several turns."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs
