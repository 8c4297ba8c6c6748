"""Check that a presigned form meets the conditions of its policy, whose signature was verified before.

(https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTConstructPolicy.html)
"""

import base64
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Final

from local.signatures import BadSignature

_EXEMPT: Final = frozenset({"policy", "x-amz-signature"})
_IGNORED: Final = "x-ignore-"
_SIZE: Final = "content-length-range"


def check_policy(fields: Mapping[str, str], bucket: str) -> tuple[int, int]:
    """Check the policy of the form with ``fields``, in lower case, for ``bucket``. Return the smallest and the largest size of
    its file, in bytes.

    Raises:
        BadSignature: the policy has expired, does not bound the size, or does not allow the bucket or one of the fields.
    """
    try:
        policy = json.loads(base64.b64decode(fields["policy"], validate=True))
        expires = dt.datetime.fromisoformat(policy["expiration"])
        if dt.datetime.now(dt.UTC) >= expires:
            raise BadSignature("The policy of the form has expired.")
        sizes = [_size(one) for one in policy["conditions"] if isinstance(one, list) and one[0] == _SIZE]
        matches = [match for one in policy["conditions"] for match in _matches(one)]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise BadSignature("The policy of the form is malformed.") from None
    if not fields.get("key"):
        raise BadSignature("The form has no key.")
    if not sizes:
        raise BadSignature("The policy of the form has no content-length-range.")
    _check_fields({**fields, "bucket": bucket}, matches)
    if fields.get("bucket", bucket) != bucket:
        raise BadSignature("The form names another bucket.")
    return max(low for low, _ in sizes), min(high for _, high in sizes)


def _check_fields(values: Mapping[str, str], matches: list[tuple[str, str, str]]) -> None:
    for operator, name, expected in matches:
        actual = values.get(name)
        if actual is None or not (actual == expected if operator == "eq" else actual.startswith(expected)):
            raise BadSignature(f"The policy of the form does not allow this value of {name}.")
    covered = {name for _, name, _ in matches} | _EXEMPT
    if extra := sorted(name for name in values if name not in covered and not name.startswith(_IGNORED)):
        raise BadSignature(f"The policy of the form has no condition for these fields: {', '.join(extra)}.")


def _size(condition: Sequence[str]) -> tuple[int, int]:
    _, low, high = condition
    return int(low), int(high)


def _matches(condition: Mapping[str, str] | Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the operator, the field and the value of each match that a condition demands."""
    if isinstance(condition, Mapping):
        return [("eq", name.lower(), str(value)) for name, value in condition.items()]
    operator, name, value = condition
    if operator == _SIZE:
        return []
    if operator not in {"eq", "starts-with"} or not name.startswith("$"):
        raise ValueError
    return [(operator, name[1:].lower(), str(value))]
