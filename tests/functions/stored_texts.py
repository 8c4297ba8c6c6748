"""Read everything that a gateway has stored as text, also what a journal has divided into tokens."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spass.journal.frames import Chunk
from spass.store.keys import parse_stream_chunk
from tests.functions.gateway import Gateway


def stored_texts(gateway: Gateway, tenant: str = "") -> Iterator[str]:
    """Yield each item of the table and each object of the bucket as text, and the joined tokens of each stream. With a
    ``tenant``, only those that are stored for it."""
    items = [item for item in gateway.items() if f"#{tenant}" in str(item["pk"])]
    for item in items:
        yield json.dumps(item, default=str, ensure_ascii=False)
    for key, body in gateway.objects().items():
        if tenant in key:
            yield f"{key} {body.decode(errors='replace')}"
    yield from journal_texts(items)


def journal_texts(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the joined tokens of each step of each attempt in the table, and the texts of all other events."""
    tokens: dict[tuple[str, str, int, int], list[str]] = {}
    for item in sorted(items, key=lambda item: (str(item["pk"]), str(item["sk"]))):
        chunk_key = parse_stream_chunk(str(item["sk"]))
        if chunk_key is None:
            continue
        for frame in Chunk.of(dict(item)).frames:
            event = json.loads(frame.data)
            if event["type"] == "token":
                step = (str(item["pk"]), chunk_key.digest, chunk_key.attempt, int(event["step"]))
                tokens.setdefault(step, []).append(event["content"])
            else:
                yield frame.data
    yield from map("".join, tokens.values())
