"""Change a user's sentence from the first person to the second."""

import re
from typing import Final

_FIRST_TO_SECOND: Final = {
    "mein": "dein", "meine": "deine", "meinen": "deinen", "meinem": "deinem", "meiner": "deiner", "meines": "deines",
    "ich bin": "du bist", "ich heiße": "du heißt", "ich habe": "du hast", "ich wohne": "du wohnst", "ich mag": "du magst",
    "my": "your", "i am": "you are", "i'm": "you are", "i have": "you have", "i live": "you live", "i like": "you like",
    "i love": "you love",
}  # fmt: skip
_FIRST_PERSON: Final = re.compile(
    r"\b(" + "|".join(sorted(map(re.escape, _FIRST_TO_SECOND), key=len, reverse=True)) + r")\b", re.IGNORECASE
)


def second_person(text: str) -> str:
    """Return ``text`` in the second person: ``my`` becomes ``your``, ``ich habe`` becomes ``du hast``."""
    return _FIRST_PERSON.sub(_to_second_person, text)


def _to_second_person(found: re.Match[str]) -> str:
    second = _FIRST_TO_SECOND[found.group().lower()]
    return second[0].upper() + second[1:] if found.group()[0].isupper() and found.start() == 0 else second
