"""Conversations with planted facts, so that a bench can count which facts a summary still contains."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# Parts of what is said. A run draws from them by its seed; nothing in the gateway or the stand-in knows them.
PROJECTS: Final = ("Kestrel", "Marlin", "Osprey", "Heron", "Tern", "Petrel", "Gannet", "Dunlin")
_FIRST: Final = ("Marta", "Jonas", "Aylin", "Pavel", "Ingrid", "Tomasz", "Leila", "Bruno", "Hanna", "Oskar", "Nadia", "Emil")
_LAST: Final = (
    "Kowalczyk",
    "Brandt",
    "Demir",
    "Novak",
    "Solberg",
    "Wrona",
    "Haddad",
    "Conti",
    "Vogel",
    "Lind",
    "Petrov",
    "Farkas",
)
_ROLES: Final = (
    "contact at the customer",
    "site manager",
    "data protection officer",
    "lead tester",
    "translator",
    "second line of support",
)
_FIGURES: Final = (
    ("budget", "{} euros", 12_000, 98_000),
    ("contract number", "VT-{}", 10_000, 99_999),
    ("number of seats", "{} seats", 110, 990),
    ("storage needed", "{} gigabytes", 1_100, 9_900),
    ("penalty for each day of delay", "{} euros", 300, 990),
)
_CHOICES: Final = (
    ("database", "moves to", ("PostgreSQL", "MariaDB", "SQLite", "CockroachDB")),
    ("hosting", "stays in", ("Falkenstein", "Gravelines", "Helsinki", "Dublin")),
    ("report", "is written in", ("Portuguese", "Finnish", "Dutch", "Catalan")),
)
_TALK: Final = (
    "I was wondering how the others see this, because the meeting ran long and nobody wrote much down.",
    "There is not much new on my side, we are still going through the same points as last week.",
    "The weather kept half of the team at home, so most of the conversation happened by phone.",
    "Could you put that a little more simply, so that I can pass it on without explaining it twice?",
    "I like the second version better than the first one, it reads more easily and is less stiff.",
    "We talked about the usual things again, who sits where and who brings the cake next time.",
    "Before I forget it, the printer on our floor is making that noise again when it warms up.",
    "It would help me if the text were shorter, people here rarely read beyond the first lines.",
    "That sounds reasonable to me, although I would like to sleep on it before I say more.",
    "The train at 17:40 was late again, and the one after it was so full that we walked.",
    "Does anybody know why the heating in room 214 is on in May?",
    "My neighbour Gerd says that his dog is afraid of the new lift since Monday 3 May.",
    "On Tuesday we had soup, on Wednesday we had soup, and I hear that Friday will be soup.",
    "Somebody asked whether the slides could have larger letters, the room is deeper than it looks.",
)
_ANSWERS: Final = (
    "Noted.",
    "That makes sense, a shorter text with plain words will be read by more people.",
    "I can rewrite it that way, with the most important thing first and everything else below it.",
    "Thank you, I keep that in mind for the rest of our conversation.",
    "Larger letters and fewer lines on a page usually help more than any other change.",
)
_SENTENCES: Final = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that the conversation states once: its project and its topic (``about``). The answer to ``question`` is ``key``."""

    project: str
    about: str
    said: str
    question: str
    key: str

    def known_by(self, text: str) -> bool:
        """Return whether a sentence of ``text`` states the fact. The key alone may belong to another project or thing."""
        return any(all(word in sentence for word in (self.project, self.about, self.key)) for sentence in _SENTENCES.split(text))


def facts_of(project: str, chance: random.Random) -> list[Fact]:
    """Return fourteen facts of one project: six names, five numbers and three decisions."""
    facts: list[Fact] = []
    for first, last, role in zip(chance.sample(_FIRST, 6), chance.sample(_LAST, 6), chance.sample(_ROLES, 6), strict=True):
        said = f"The {role} of project {project} is {first} {last}."
        facts.append(Fact(project, role, said, f"Who is the {role} of project {project}?", last))
    for what, unit, low, high in _FIGURES:
        number = str(chance.randrange(low, high))
        said = f"For project {project} the {what} is {unit.format(number)}."
        facts.append(Fact(project, what, said, f"What is the {what} of project {project}?", number))
    for what, verb, choices in _CHOICES:
        choice = chance.choice(choices)
        said = f"We decided that the {what} of project {project} {verb} {choice}."
        facts.append(Fact(project, what, said, f"What did we decide about the {what} of project {project}?", choice))
    chance.shuffle(facts)
    return facts


def talk(facts: Sequence[Fact], chance: random.Random, turns: int) -> Iterator[tuple[str, str]]:
    """Return the conversation, with the facts at even distances."""
    every = max(1, turns // len(facts))
    for turn in range(turns):
        user = chance.sample(_TALK, 3)
        if turn % every == 0 and turn // every < len(facts):
            user.insert(chance.randrange(4), facts[turn // every].said)
        yield " ".join(user), chance.choice(_ANSWERS)
