"""The results of tools, in a size that a model can read."""

import json
from typing import Final

from spass.core.json import dump, encode_utf8
from spass.core.messages import Json

MAX_RESULT_BYTES: Final = 64 * 1024


def truncate_result(result: Json) -> tuple[Json, str]:
    """Return ``result`` and its compact JSON. One longer than ``MAX_RESULT_BYTES`` is cut, and says so."""
    text = dump(result)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # half a surrogate pair in what somebody else's server answered
        encoded = encode_utf8(text)
        text = encoded.decode()
        result = json.loads(text)
    if len(encoded) <= MAX_RESULT_BYTES:
        return result, text
    # What is JSON already at most doubles when it is quoted once more.
    beginning = encoded[: MAX_RESULT_BYTES // 2 - 100].decode("utf-8", "ignore")
    short: Json = {"truncated": True, "note": "The result was too long. This is its beginning.", "beginning": beginning}
    return short, dump(short)
