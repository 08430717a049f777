"""What kind of text a prompt asks for, and the words of a reply that does not repeat itself."""

import random
import re
import zlib
from collections.abc import Sequence

LONG_WORDS = 600  # a prompt of more words is `long` whatever it is about
_WORD = re.compile(r"\S+")
_CODE = re.compile(
    r"```|\bdef \w+\(|\bclass \w+[:({]|[{;]\s*$|=>|\b(?:python|javascript|typescript|rust|java|sql|postgresql|regex|"
    r"regular expression|bash|c\+\+|json|csv|html|makefile|function|refactor|unit tests?|stack trace|compiler?|"
    r"script|api|bug|code|standard library|implement|create table|goroutines?|thread-safe)\b",
    re.IGNORECASE | re.MULTILINE,
)
_MATH = re.compile(
    r"[\da-z]\s*[-+*/^=×÷]\s*\d|\b(?:solve|equations?|integral|integers?|derivative|derive|probability|theorem|triangle|"
    r"rectangular|fraction|per ?cent|how many different|sum of|remainder|average speed|calculator|digits|power of|"
    r"root of|arithmetic|geometric|dimensions|weighings?|urn|knaves?)\b",
    re.IGNORECASE,
)
_HINTS_AT_MATH = re.compile(  # two of them make a problem, one stands in many a chat
    r"\b(?:prove|how (?:many|much|long|fast|far|old)|which (?:time|day)|formula|compute|distance|area|rate|cases|"
    r"shortcut|litres|metres|km|points|coins?|hour hand|nearest|together they)\b",
    re.IGNORECASE,
)
_LEAST_GLUE = 0.08
_FEWEST_WORDS = 8  # fewer say nothing about their kind


def words_of(text: str) -> list[str]:
    """The simulated tokens of a text: its words."""
    return _WORD.findall(text)


# Real English cannot do without these; a list of random words can.
_GLUE = frozenset(
    words_of(
        "a an and are as at be by can do for from how i in is it me my of on or that the this to what with you your"
    )
)


def kind_of(text: str) -> str:
    """The kind of text that a prompt calls for: one of draft_tree.FIRST_GUESS."""
    words = [word.strip(".,:;!?()\"'").lower() for word in words_of(text)]
    if len(words) >= _FEWEST_WORDS and sum(word in _GLUE for word in words) < _LEAST_GLUE * len(words):
        return "code" if len(_CODE.findall(text)) >= 3 else "random"
    if len(words) > LONG_WORDS:
        return "long"
    code, mathematics, hints = (_distinct(signs, text) for signs in (_CODE, _MATH, _HINTS_AT_MATH))
    if code and (code >= mathematics or "```" in text):
        return "code"
    return "math" if 2 * mathematics + hints >= 2 else "chat"


def _distinct(signs: re.Pattern[str], text: str) -> int:
    return len({sign.lower() for sign in signs.findall(text)})


def seed_of(*parts: object) -> random.Random:
    """A generator that the same parts always start alike, on every machine."""
    return random.Random("\x1f".join(map(str, parts)))


class Reply:
    """The words of an endless answer to one prompt, the same every time."""

    def __init__(self, prompt: str, vocabulary: int, *, repeat: str | None = None) -> None:
        self._rng = seed_of("reply", prompt)
        self._vocabulary = vocabulary
        self._repeat = repeat  # a reply that collapsed into one word
        self._ids: list[int] = []
        self._lengths: list[int] = []
        self._text = ""

    def text(self, tokens: int) -> str:
        """The first so many words."""
        self._reach(tokens)
        return self._text[: self._lengths[tokens - 1]] if tokens else ""

    def ids(self, tokens: int) -> list[int]:
        """Stand-ins for the ids of these tokens; the same word has the same one."""
        self._reach(tokens)
        return self._ids[:tokens]

    def _reach(self, tokens: int) -> None:
        while len(self._ids) < tokens:
            for word in [self._repeat] * 16 if self._repeat else _sentence(self._rng):
                self._ids.append(zlib.crc32(word.encode()) % self._vocabulary)
                self._text += f" {word}"
                self._lengths.append(len(self._text))


def _sentence(rng: random.Random) -> Sequence[str]:
    pattern = rng.choice(_PATTERNS)
    sentence = " ".join(rng.choice(_VOCABULARY[part]) if part in _VOCABULARY else part for part in pattern.split())
    if rng.random() < 0.3:
        sentence = f"{sentence}, {rng.choice(_TAILS)} {rng.randrange(2, 900)} {rng.choice(_VOCABULARY['NOUNS'])}"
    return f"{sentence[0].upper()}{sentence[1:]}.".replace(" ,", ",").split()


_PATTERNS = (
    "the ADJ NOUN VERB the NOUN",
    "ADV the NOUN VERB NOUNS and NOUNS",
    "WHEN the NOUN is ADJ , a NOUN VERB NOUNS",
    "most NOUNS are ADJ but the NOUN VERB ADV",
    "a ADJ NOUN VERB every NOUN of the NOUN",
    "NOUNS and NOUNS make the NOUN ADJ",
    "LINK the NOUN , NOUNS stay ADJ",
    "no NOUN VERB the ADJ NOUN ADV",
    "WHEN NOUNS are ADJ , consider the NOUN LINK the NOUN",
    "it ADV VERB a NOUN for ADJ NOUNS",
)
_TAILS = ("about", "nearly", "more than", "at least", "roughly", "fewer than")
_VOCABULARY = {
    "NOUN": words_of(
        "river market engine garden window letter bridge teacher signal harbour valley recipe journal orbit forest "
        "camera budget lantern station village compass tunnel theory machine painter sailor winter mirror border kettle"
    ),
    "NOUNS": words_of(
        "figures boats answers stones clouds lessons workers stories maps wheels seeds coins songs meetings colours "
        "measurements lamps visitors rules shadows tools letters roofs travellers numbers branches roads questions"
    ),
    "ADJ": words_of(
        "quiet narrow patient bright heavy curious gentle modern distant simple careful broken warm hidden early "
        "common steady wooden sudden honest shallow busy crooked plain northern round fragile useful"
    ),
    "VERB": words_of(
        "carries follows crosses repairs explains gathers protects measures opens shapes answers surprises replaces "
        "holds reaches describes supports changes slows reveals balances teaches"
    ),
    "ADV": words_of("often slowly rarely usually quietly soon always nearly later together clearly gradually"),
    "WHEN": ["when", "because", "although", "once", "while", "where"],
    "LINK": ["behind", "beside", "without", "beyond", "under", "after"],
}
