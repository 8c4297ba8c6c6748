"""Bound the size of tool results."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spass.aws.idempotency import StoredAnswer
from spass.core.json import dump, encode_utf8
from spass.core.messages import Json
from spass.tools.answers import ToolResult

MAX_RESULT_BYTES: Final = 64 * 1024
"""Bytes of JSON."""
_MAX_LIST_BYTES: Final = 48 * 1024


def fit_items(items: Sequence[Json]) -> list[Json]:
    """Return the first items, up to 48 KiB of JSON and at least one, so that every page of a list makes progress."""
    size = 0
    for number, item in enumerate(items):
        size += len(json.dumps(item, ensure_ascii=False).encode())
        if number and size > _MAX_LIST_BYTES:
            return [*items[:number]]
    return [*items]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to a tool call over HTTP.

    ``is_stored``: the transaction of the tool's change has already stored the answer under the request's idempotency key.
    ``answer_to_store``: the answer that the key stores instead of ``body``.
    """

    body: ToolResult
    failed: bool
    is_stored: bool = False
    answer_to_store: StoredAnswer | None = None


def truncate_result(result: Json) -> tuple[Json, str]:
    """Return ``result`` and its compact JSON. Replace a result that is too long by its beginning and a note."""
    text = dump(result)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate in the answer of another server
        encoded = encode_utf8(text)
        text = encoded.decode()
        result = json.loads(text)
    if len(encoded) <= MAX_RESULT_BYTES:
        return result, text
    # The beginning becomes a JSON string, and quoting makes a JSON text at most twice as long.
    beginning = encoded[: MAX_RESULT_BYTES // 2 - 100].decode("utf-8", "ignore")
    replacement: Json = {"truncated": True, "note": "The result was too long. This is its beginning.", "beginning": beginning}
    return replacement, dump(replacement)
