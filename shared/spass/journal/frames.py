"""Frames: the events of a stream as text, rendered once. The list of frames is the same for every reader. Chunks: the items that
hold frames. The first frame's number is in the chunk's key."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, cast

from spass.core.json import dump_line, encode_utf8, replace_surrogates
from spass.core.messages import Json
from spass.store.keys import parse_stream_chunk
from spass.store.table import TTL
from spass.store.writes import Item, Value

MAX_CHUNK_BYTES: Final = 300_000
"""Bytes of the frames of a chunk with more than one. DynamoDB refuses an item of more than 400 KB."""
_OVERHEAD_BYTES: Final = 32  # at most, per frame or run: the types and lengths of its values, and the names of its attributes
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive frames, the first of which has the number ``first``. ``is_last`` marks the last chunk of an attempt."""

    first: int
    frames: Sequence[Frame]
    is_last: bool = False

    @property
    def end(self) -> int:
        """Return the number of the frame that follows the chunk."""
        return self.first + len(self.frames)

    def attributes(self, ttl: int) -> dict[str, Value]:
        """Return the attributes of the item, which expires at ``ttl``."""
        attributes: dict[str, Value] = {"frames": _encode(self.frames), TTL: ttl}
        return {**attributes, "last": True} if self.is_last else attributes

    @classmethod
    def of(cls, item: Item) -> "Chunk":
        key = parse_stream_chunk(str(item["sk"]))
        if key is None:
            raise ValueError("the item is not a chunk")
        return cls(key.n, list(_decode(cast(Sequence[Value], item["frames"]))), "last" in item)


def split(frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    """Yield ``frames`` in parts that each fit in a chunk. A frame is never divided."""
    start, size = 0, 0
    for index, frame in enumerate(frames):
        added = len(encode_utf8(frame.data)) + len(frame.event or "") + _OVERHEAD_BYTES
        if index > start and size + added > MAX_CHUNK_BYTES:
            yield frames[start:index]
            start, size = index, 0
        size += added
    if frames:
        yield frames[start:]


# A run of tokens is ``[prefix, suffix, texts]`` or ``[prefix, suffix, texts, event]``, with a line break between the texts: no
# text contains one. Another frame is ``{data, event?}``.


def _encode(frames: Sequence[Frame]) -> list[Value]:
    encoded: list[Value] = []
    for (is_token, prefix, suffix, event), group in groupby(frames, _kind):
        if is_token:
            texts = "\n".join(frame.text for frame in group)
            run = [prefix, suffix, texts] if event is None else [prefix, suffix, texts, event]
            encoded.append([replace_surrogates(part) for part in run])
        else:
            name = {} if event is None else {"event": replace_surrogates(event)}
            encoded += [{"data": replace_surrogates(frame.data), **name} for frame in group]
    return encoded


def _kind(frame: Frame) -> tuple[bool, str, str, str | None]:
    return (True, frame.prefix, frame.suffix, frame.event) if frame.is_token else (False, "", "", frame.event)


def _decode(encoded: Sequence[Value]) -> Iterator[Frame]:
    for group in encoded:
        if isinstance(group, Mapping):
            yield Frame(cast(str, group["data"]), event=cast("str | None", group.get("event")))
        else:
            prefix, suffix, texts, *event = cast(Sequence[str], group)
            for text in texts.split("\n"):
                yield Frame(text, prefix, suffix, event[0] if event else None)
