"""Word lists for matching: stop words, irregular forms, number words, small talk. English; data only.

Above: text (which applies them), ranking (small talk). Below: nothing. Every entry is already folded
(``text.fold``): lower case, no accents, no apostrophes.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Function words and the fragments contractions leave behind. Question words are here too: what kind of answer is
# wanted is read from the query itself (dates.asks_when), not matched against turns.
STOP_WORDS = _words(
    """
    a about all also am an and any are as at be been being but by ca can cannot could did do does
    doing done dont for from had has have having he her here hers herself him himself his how i if im in into is it
    its itself ive just lets many may me might mine much must my myself no nor not of off on
    only or other our ours out over own please s same sha shall she should so some such t than that the their
    theirs them themselves then there these they this those through to too under until up us very was we were what
    when where whether which while who whom whose why will with wo would yes you your yours yourself
    """
)

# One line a group: the form on the left stands for those on its right. Regular endings are the stemmer's business,
# so a right-hand side only lists what the stemmer would miss.
_IRREGULAR = """
awake awoke awoken; bear bore borne; beat beaten; become became; begin began begun; bend bent; bet betted;
bind bound; bite bit bitten; bleed bled; blow blew blown; break broke broken; breed bred; bring brought;
build built; burn burnt; buy bought; catch caught; choose chose chosen; cling clung; come came; creep crept;
deal dealt; dig dug; dive dove; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate eaten;
fall fell fallen; feed fed; feel felt; fight fought; find found; flee fled; fling flung; fly flew flown;
forbid forbade forbidden; forget forgot forgotten; forgive forgave forgiven; freeze froze frozen;
get got gotten; give gave given; go went gone; grind ground; grow grew grown; hang hung; hear heard; hide hid hidden;
hold held; keep kept; kneel knelt; know knew known; lay laid; lead led; lean leant; leap leapt; learn learnt;
leave left; lend lent; lie lain; light lit; lose lost; make made; mean meant; meet met; mistake mistook mistaken;
pay paid; plead pled; prove proven; ride rode ridden; ring rang rung; rise rose risen; run ran; say said; see saw seen;
seek sought; sell sold; send sent; sew sewn; shake shook shaken; shine shone; shoot shot; show shown;
shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept; slide slid; smell smelt; sneak snuck;
speak spoke spoken; speed sped; spell spelt; spend spent; spill spilt; spin spun; spit spat; spring sprang sprung;
stand stood; steal stole stolen; stick stuck; sting stung; stink stank; strike struck; strive strove; swear swore sworn;
sweep swept; swell swollen; swim swam swum; swing swung; take took taken; teach taught; tear tore torn; tell told;
think thought; throw threw thrown; understand understood; wake woke woken; wear wore worn; weave wove woven;
weep wept; win won; wind wound; withdraw withdrew withdrawn; write wrote written;
child children; foot feet; goose geese; half halves; knife knives; leaf leaves; loaf loaves; man men;
mouse mice; ox oxen; person people; scarf scarves; shelf shelves; thief thieves; tooth teeth; wife wives; wolf wolves;
woman women; good better best; bad worse worst; far further furthest farther farthest;
color colour; favorite favourite; flavor flavour; gray grey; harbor harbour; honor honour; humor humour;
labor labour; neighbor neighbour; center centre; theater theatre; liter litre; meter metre; check cheque; pajama pyjama;
jewelry jewellery; program programme; tire tyre; travel travelled travelling traveller; organize organise;
realize realise; recognize recognise; apologize apologise; analyze analyse; mom mum mommy mummy; dad daddy;
tv television telly; phone telephone; photo photograph; fridge refrigerator; bike bicycle; ad advert advertisement;
doctor dr; okay ok; movie film; vacation holiday;
allergy allergic allergen; diabetes diabetic; asthma asthmatic; medicine medication meds; pregnancy pregnant;
marriage marry married; vaccine vaccination
"""

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def _table() -> dict[str, str]:
    table = {form: line.split()[0] for line in _IRREGULAR.split(";") for form in line.split()[1:]}
    return table | {word: str(value) for value, word in enumerate(_NUMBERS)}


BASE_FORMS = _table()

# What people say to keep a conversation going: it names nothing that could be remembered.
SMALL_TALK = _words(
    """
    again ah aha alright answer anything anyway ask back bit bot bravo bye cheer clear confirm continue cool
    correct course day dear done else enough evening everyone everything exactly excellent fast fine get go good
    goodbye goodnight got great guess haha hang hear hello help hey hi hmm hold hopefully hour huh hurry idea
    instead kidding know later least less let listen look lot loud loudly machine maybe mean mhm minute mm moment
    morning nah need never next nice night nope nothing now oh okay once one pardon perfect please pleasure
    possible probably problem question quick quickly quiet quite rather ready really repeat right robot same say
    sec second see simple sir slow slowly someone something somewhat soon sorry speak speed start still stop
    super sure talk tell thank thanks thing think time today tomorrow tonight true truly try understand
    understood wait want way welcome well whatever while wonderful worry wow wrong yeah yep yet yo
    """
)
