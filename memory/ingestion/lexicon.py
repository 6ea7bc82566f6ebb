"""Words that tell who is spoken of, and whether something is stated, asked, denied, supposed or meant in jest.

English, German, Spanish, French, Arabic, Hindi and Urdu in Latin script. All is folded (retrieval.text.fold): lower
case, no accents, one form of each Arabic letter. Data only. Above: assertions, guards, speakers.
"""

from __future__ import annotations

import re

_CARRIED_ON = re.compile(r"\\\n\s*")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def any_of(alternatives: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """One pattern for all lines; each line is a pattern, a backslash at its end carries it on."""
    lines = _CARRIED_ON.sub("", alternatives).splitlines()
    return re.compile("|".join(f"(?:{line.strip()})" for line in lines if line.strip()), flags)


def whole(text: str) -> re.Pattern[str]:
    """Any of these words, as whole words."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, text.split()))})(?!\w)")


FIRST_PERSON = whole(
    "i i'm i've i'd i'll me my mine myself we we're we've us our ours ich mich mir mein meine meiner meinen"
    " meinem meines"
    " wir uns unser unsere unserer unseren unserem yo mi mis mio mia me nos nosotros nuestro nuestra nuestros"
    " nuestras soy"
    " estoy tengo vivo prefiero quiero necesito trabajo tenia odio je j'ai j'aime j'habite j'adore j'etais"
    " j'avais me moi"
    " mon ma mes nous notre nos m'appelle انا نحن لي عندي لدي اسمي معي لنا عندنا main mein maine mujhe mera meri"
    " mere hum"
    " hamara hamari hame humein"
)
FIRST_SUBJECT = any_of(
    r"""
    ^(?:i|i'm|i've|i'd|i'll|we|we're|ich|wir|yo|nosotros|je|j'|nous|انا|نحن|main|hum)(?!\w)
    """
)
# "They" and "sie" are companies and the polite you as well: they tell nothing.
THIRD_PERSON = any_of(
    r"""
    ^(?:he|he's|she|she's|er|el|ella|il|elle|هو|هي|woh|wo|us ne|usko|uski|uska)(?!\w)
    ^(?:his|her|sein|seine|ihr|sa|son)(?!\w) \w+
    """
)
_KIN = (
    "brother sister mother mum mom mummy father dad daddy wife husband partner girlfriend boyfriend fiance"
    " fiancee son"
    " daughter kid child children kids boss colleague coworker friend mate neighbour neighbor uncle aunt cousin"
    " nephew niece"
    " grandma grandmother grandpa grandfather granddad roommate flatmate landlord teacher doctor"
    " bruder schwester mutter mama vater papa frau mann sohn tochter freund freundin chef chefin kollege kollegin"
    " nachbar nachbarin onkel tante oma opa kind kinder hermano hermana madre padre esposa esposo mujer marido"
    " hijo hija"
    " amigo amiga novio novia jefe jefa vecino vecina abuelo abuela primo prima hermanos hijos"
    " frere soeur mere pere maman femme mari fils fille ami amie copain copine patron voisin voisine oncle tante"
    " grand-mere grand-pere enfants bhai behen behan maa pita pati patni biwi shauhar beta beti dost walid walida"
    " ammi abbu"
)
KIN_WORDS = words(_KIN) | words("اخي اختي امي ابي والدي والدتي زوجتي زوجي ابني ابنتي صديقي صديقتي")
KIN_SUBJECT = any_of(
    rf"""
    ^(?:my|our|mein|meine|unser|unsere|mi|mis|nuestro|nuestra|mon|ma|mes|notre|mera|meri|mere|hamara|\
      hamari) (?:\w+ ){{0,2}}?(?P<kin>{"|".join(_KIN.split())})(?!\w)
    ^(?P<arabic>اخي|اختي|امي|ابي|والدي|والدتي|زوجتي|زوجي|ابني|ابنتي|صديقي|صديقتي)(?!\w)
    """
)
NAME_SUBJECT = re.compile(
    r"^(?P<name>[A-Z][\w'-]+) (?:is|was|has|had|does|will|would|can|moved|said|went|\w+[^s\W]s"
    r"|ist|hat|mag|es|tiene|est|a)\b"
)
NO_NAMES = words(
    "It This That These Those There Here He She They We You What Which Who Where When Why How Everything Nothing"
    " Something Somebody Everybody Nobody One Order Email Phone The A An Das Es Die Der Ese Esto Esta Eso C'est"
    " Ce Cela"
)

NEGATIONS = whole(
    "not no never none nothing nobody neither nor cannot without hardly nicht kein keine keinen keiner keinem"
    " keines nie"
    " niemals nichts ohne no nunca jamas nada nadie sin tampoco ne pas jamais rien sans aucun aucune n'ai n'est"
    " n'aime"
    " لا لم لن ليس ليست لست ما بدون غير nahi nahin na kabhi mat bina"
)
NEGATED_SHORT = re.compile(r"n't(?!\w)|(?<!\w)n'(?=[aeiouy])")
# What says that something ended or is refused without a word of denial.
ENDINGS = any_of(
    r"""
    \b(?:stopp?(?:ed|ing)?|quit|gave up|given up|ended|cancell?(?:ed|ing)?|former(?:ly)?|used to|ex-\w+|left|\
      any ?more|no longer)\b
    \b(?:hate|hates|dislike|dislikes|avoid|avoids|refuse|refuses|refused|against|instead|rather|moved|changed|lost|\
      missing)\b
    \b(?:late|delayed|broken|wrong|failed|fails|unable|declined|rejected|locked|down|off|damaged|useless|impossible|\
      free)\b
    \b(?:aufgehort|gekundigt|storniert|abgesagt|mehr|hasse|hasst|statt|ehemalig\w*|umgezogen|kaputt|verspatet|\
      verloren)\b
    \b(?:dejado|deje|cancelad\w+|cancele|odio|odia|en vez|ex|ya no|perdid\w+|retras\w+|rot\w+|mudad\w+)\b
    \b(?:arrete|annule\w*|deteste|plus|ancien\w*|perdu\w*|retard|casse\w*|demenage\w*)\b
    \b(?:except|apart from|ausser|excepto|menos|sauf|excepte)\b
    (?:توقفت|الغيت|اكره|متاخر|band|chhod|cancel)
    """
)
LEADING = re.compile(
    r"^(?:(?:and|but|so|well|because|also|yes|yeah|oh|ok|okay|hi|hello|hey|actually|then|sorry|though|und|aber|ja|also|hallo"
    r"|y|pero|si|hola|et|mais|oui|bonjour|enfin|و|لكن|نعم|مرحبا|aur|lekin|haan)\b[,.!:؛،]?\s+)+"
)
LEADING_NO = re.compile(
    r"^(?:no|nope|nein|nee|non|لا|nahi|nahin|na)(?: no)?(?:[,.!]\s*|\s+(?=i\b|i'm|it|my|ich|mein|yo|je|انا))"
)

AFFIRMATIONS = any_of(
    r"""
    ^(?:yes|yeah|yep|yup|correct|exactly|that's (?:right|correct|me|it)|right|sure|absolutely|of course|please do|\
      ok|okay|great|perfect|sounds good|go ahead|do it|book it|fine|indeed)(?!\w)
    ^(?:ja|jawohl|genau|richtig|stimmt|gerne|klar|natürlich|naturlich|passt|bitte)(?!\w)
    ^(?:si|claro|correcto|exacto|vale|por supuesto|asi es|de acuerdo|perfecto)(?!\w)
    ^(?:oui|ouais|exact|exactement|c'est (?:ca|bien ca|correct|exact)|bien sur|d'accord|parfait)(?!\w)
    ^(?:نعم|ايوه|ايوا|اجل|صحيح|بالضبط|تمام|طبعا)(?!\w)
    ^(?:haan|han|haa|ji|ji haan|bilkul|theek|sahi|thik)(?!\w)
    """
)
OFFERS = any_of(
    r"""
    \b(?:shall i|should i|would you like|do you want|i can|i could|how about|let me|may i|is (?:it|that|your)|\
      are you|did you)\b
    \b(?:soll ich|mochten sie|mochtest du|ich kann|darf ich|ist (?:das|ihre?|dein))\b
    \b(?:quiere|desea|puedo|le gustaria|es (?:su|tu|usted))\b|\b(?:voulez|souhaitez|je peux|est-ce que|c'est bien)\b
    (?:هل|هل تريد|يمكنني)|\b(?:kya|kya aap|chahte|chahenge)\b
    """
)

ASKS = any_of(
    r"""
    ^(?:what|which|who|whose|where|when|why|how)(?:'s|'re)?(?: \w+)? (?:is|are|was|were|am|do|does|did|will|\
      would|can|could|\
      should|have|has|had)\b
    ^(?:what|who|where|how)'s\b|^how (?:many|much|long|about|come)\b|^what (?:if|about|time|kind|else)\b|^any idea\b
    ^(?:am|was) i\b|^(?:are|were|do|did|have|don't|didn't|haven't|aren't) (?:i|you|we|they)\b
    ^(?:is|was|isn't) (?:it|that|there|this|my|the)\b|^(?:does|did|has) (?:it|he|she|my|the)\b
    ^(?:wer|wen|wem|wo|wann|warum|wieso|welche[rsnm]?|bin ich|ist (?:das|es|mein|meine)|hast du|haben sie|habe ich)\b
    ^(?:weisst du|wissen sie|was (?:ist|sind|kann|hast|haben|habe|soll|war))\b
    ^(?:quien|por que|cual|cuales|cuanto|tiene usted|sabe|sabes|que (?:es|son|hora|dia|tengo))\b
    ^(?:qu'est-ce|est-ce|quel|quelle|pourquoi|combien|savez|suis-je|ai-je)\b
    ^(?:هل|ماذا|اين|متي|لماذا|كيف)(?!\w)
    ^(?:kya|kaun|kahan|kab|kyun|kyon|kaise|kitna|kitne|kaunsa)\b
    """
)
REQUESTS = any_of(
    r"""
    \b(?:can|could|would|will) (?:you|i|we)\b|\bplease\b|\bi(?:'d| would) (?:like|love|prefer)\b|\bmind (?:if|\
      \w+ing)\b
    \b(?:konnen sie|konnten sie|kannst du|konntest du|wurden sie|bitte|ich mochte|ich hatte gern)\b
    \b(?:puede|podria|puedes|podrias|por favor|quisiera|me gustaria)\b
    \b(?:pouvez|pourriez|peux-tu|s'il (?:vous|te) plait|je voudrais|j'aimerais)\b
    (?:هل يمكن|ممكن|من فضلك|لو سمحت|اريد)|\b(?:kya aap|please|kripya|chahiye|chahta|chahti|meharbani)\b
    """
)
TAGS = any_of(
    r"""
    [,،]? ?(?:right|ok|okay|you know|remember|isn't it|don't you (?:know|remember)|correct|oder|nicht wahr|gell|ne|\
      verdad|no|vale|n'est-ce pas|hein|صح|na|hai na)\s*[?؟]+$
    """
)
SUPPOSED = any_of(
    r"""
    \b(?:even )?if (?!i'?m not mistaken|i remember|i may\b|i can\b|possible|you (?:need|want|can|could|don't mind)|\
      that's ok)(?:i|we|my|he|she|they|you|it)\b
    \b(?:what if|suppose|supposing|imagine|let's say|hypothetically|pretend|as if i|i wish|maybe i(?:'ll)?|\
      perhaps i|one day i|would be nice|i might|i may (?!\w+ (?:name|order))|thinking (?:of|about)|not sure (?:if|\
      whether))\b
    \b(?:wenn (?:ich|wir|mein\w*) .{0,120}?(?:hatte|ware|wurde|konnte)|falls (?:ich|wir)|angenommen|stell dir vor|\
      stellen sie sich vor|vielleicht)\b
    \bsi (?:yo |no )?(?:fuera|tuviera|viviera|pudiera|estuviera|fuese|hubiera)\b|\b(?:imagin[ae]te?|supongamos|\
      ojala|quizas?|tal vez)\b
    \bsi j'(?:etais|avais|habitais)|\bsi je |\b(?:imaginons|supposons|peut-etre)\b
    (?:لو كنت|لو كان|لو اني|تخيل|افترض|ربما|يمكن ان اكون)
    \b(?:agar|maan lo|farz kar\w*|shayad|kaash)\b
    """
)
REPORTED = any_of(
    r"""
    \bremember (?:when|how|that time)\b|\bwhen i (?:said|told|mentioned)\b|\bdid i (?:ever )?(?:say|tell|mention)\b|\
      \bas if\b
    \bi (?:once )?(?:said|told you|mentioned|claimed|thought) (?:that )?i (?:was|had|wanted|liked|loved|hated|lived|\
      took|would)\b
    \b(?:he|she|they|you|the (?:ad|advert|man|woman|guy|film|song|tv|radio)) (?:said|says|told me|claims?|thinks?)\b
    \b(?:als ich (?:sagte|gesagt|meinte)|erinner\w* .{0,60}?als|(?:er|sie) (?:sagte|sagt|meint))\b
    \b(?:recuerda\w* cuando|cuando dije|dije que|(?:el|ella) (?:dice|dijo))\b
    \b(?:quand j'ai dit|tu te souviens|vous vous souvenez|(?:il|elle) (?:dit|a dit))\b
    (?:هل تذكر|عندما قلت|قال ان|قالت ان)|\byaad hai\b|\b(?:usne|unhone) kaha\b
    """
)
JOKES = any_of(
    r"""
    \b(?:joking|kidding|just a joke|only a joke|was a joke|pulling your leg|scherz|scherze|spass gemacht|\
      war (?:nur )?(?:ein )?spass)\b
    \b(?:bromeando|era broma|en broma|de broma|plaisantais|plaisante|blague|rigolais)\b
    (?:امزح|مزحه|مازحا)|\b(?:maza+k|mazaaq)\b
    """
)
NO_JOKES = re.compile(
    r"\b(?:not|no|never|isn't|kein|sin|pas|nahi)(?: \w+)? (?:joking|kidding|joke|scherz|spass|broma|blague|mazak)|\
      ^seriously"
)

# On the text as it was said: what is cut out of it.
SLIP = any_of(
    r"""
    \S+[,.;]? (?:no,? sorry|sorry,? no|no,? no|no,? wait|wait,? no|no,? i mean|i mean|or rather|scratch that|\
      correction),? \
      (?:on |at |for |it's |it is |the )?
    \S+[,.;]? (?:nein,? (?:warte|sorry|entschuldigung|quatsch|doch)|ach nein|quatsch|ich meine),? (?:am |um |im )?
    \S+[,.;]? (?:no,? perd[oó]n|perd[oó]n|no,? espera|digo|mejor dicho|quiero decir),? (?:el |a las )?
    \S+[,.;]? (?:non,? pardon|pardon|non,? attendez|je veux dire|enfin non),? (?:le |[aà] )?
    \S+[,.;،]? (?:لا،? عفو[اً]+|عفو[اً]+|[اأ]قصد)[،,]? ?
    \S+[,.;]? (?:nahi nahi|nahi,? sorry|matlab),? ?
    """,
    re.IGNORECASE,
)

TEMPORAL = any_of(
    r"""
    \d
    \b(?:today|tonight|tomorrow|yesterday|now|since|until|till|ago|next|last|this (?:week|month|year|morning|\
      afternoon|evening|weekend)|days?|weeks?|weekend|months?|years?|morning|afternoon|evening|noon|midnight|\
      christmas|easter|recently|soon|spring|summer|autumn|winter|just|anymore|any more|no longer|from|by)\b
    \b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b|\b(?:january|february|march|april|may|june|july|august|\
      september|october|november|december)\b
    \b(?:heute|morgen|gestern|ubermorgen|seit|bis|vor|nachste\w*|letzte\w*|tage?n?|woche\w*|monat\w*|jahr\w*|jetzt|\
      bald|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|januar|februar|marz|mai|juni|juli|oktober|\
      dezember|weihnachten)\b
    \b(?:hoy|manana|ayer|desde|hasta|hace|proxim\w+|pasad\w+|dias?|semanas?|mes(?:es)?|anos?|ahora|pronto|lunes|\
      martes|miercoles|jueves|viernes|sabado|domingo|enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|\
      octubre|noviembre|diciembre)\b
    \b(?:aujourd'hui|demain|hier|depuis|jusqu|il y a|prochain\w*|dernier\w*|derniere\w*|jours?|semaines?|mois|ans?|\
      annees?|maintenant|bientot|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|janvier|fevrier|mars|avril|\
      juin|juillet|aout|septembre|octobre|novembre|decembre)\b
    (?:اليوم|غدا|امس|منذ|حتي|قبل|القادم|الماضي|يوم|اسبوع|شهر|سنه|عام|الان|الاثنين|الثلاثاء|الاربعاء|الخميس|الجمعه|\
      السبت|الاحد)
    \b(?:aaj|kal|parso|se|tak|pehle|agle|agla|pichle|pichla|din|hafte|hafta|mahine|mahina|saal|abhi|somvar|\
      mangalvar|budhvar|guruvar|shukravar|shanivar|ravivar|itwaar|peer|jumma|jumerat)\b
    """
)

# Words of a fact that need not be said: how facts are put.
FRAME = words(
    "user users caller customer nutzer nutzers benutzer kunde usuario cliente utilisateur client المستخدم"
    " call name live lives life want prefer like love own need report state say said mention ask request get current"
    " currently now"
    " located moved works work make go come take use book contact communication via long longer anymore be appointment"
    " because since though although while after before again still already yet very each every choose decide select"
    " born birth birthday date termin bestellung"
    " order issue problem account"
    " hat ist heisst heissen wohnt lebt arbeitet bevorzugt mag mochte will und der die das den dem ein eine einen"
    " im in am"
    " zu mit bei von fur auf gegen nicht kein sich"
    " tiene es se llama vive trabaja prefiere gusta quiere un una el la los las de del en a al con para por su"
    " sus que le"
    " est s'appelle habite travaille prefere aime veut un une le les des du d l au aux avec pour son sa ses que qui"
    " هو لديه اسمه يسكن يعيش يعمل يفضل يحب في من الي علي عن مع ان"
    " hai hain ka ki ke ko mein me se rehta rehti karta karti pasand naam hoon tha thi"
)

# Objects that say nothing, and masks of what must not be kept.
EMPTY_NAMES = words(
    "none unknown null n/a na nothing it this that something someone entity object - ? yes no true false"
)
MASKS = re.compile(r"\[(?:card number|redacted|pin|password|code|masked)[^\]]*\]|\*{4,}", re.IGNORECASE)
