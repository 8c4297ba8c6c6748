"""Frames: the events of a stream as text, rendered once. The list of frames is the same for every reader."""

import re
from dataclasses import dataclass
from typing import Final

from spass.core.json import dump_line
from spass.core.messages import Json

_EVENT_ID: Final = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: the text of its ``data`` line is ``prefix + text + suffix``, and ``event`` is its name, if it has one.

    A frame with a prefix is a token's. It may wait for the next flush, and a run of tokens with equal prefix and suffix is
    stored without repeating them. No field may contain a line break, which would end the line.
    """

    text: str
    prefix: str = ""
    suffix: str = ""
    event: str | None = None

    def __post_init__(self) -> None:
        line = f"{self.prefix}{self.text}{self.suffix}{self.event}"
        if "\n" in line or "\r" in line:
            raise ValueError("a frame is one line and may not contain a line break")

    @property
    def data(self) -> str:
        return self.prefix + self.text + self.suffix

    @property
    def is_token(self) -> bool:
        return bool(self.prefix)


def json_frame(value: Json, event: str | None = None) -> Frame:
    """Return the frame with ``value`` as JSON, named ``event``."""
    return Frame(dump_line(value), event=event)


DONE: Final = Frame("[DONE]")
"""The last frame of a stream in OpenAI's format that did not fail."""


@dataclass(frozen=True, slots=True)
class EventId:
    """The id of an event, ``<attempt>-<n>``. Both count from 1."""

    attempt: int
    n: int

    @classmethod
    def parse(cls, text: str) -> "EventId":
        """Return the id that ``text`` spells.

        Raises:
            ValueError: it is not an id.
        """
        match = _EVENT_ID.fullmatch(text)
        if match is None:
            raise ValueError("an event id is <attempt>-<number>, for example 1-17")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.attempt}-{self.n}"
