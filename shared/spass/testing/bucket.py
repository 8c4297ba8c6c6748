"""A bucket in memory, strongly consistent, behind the calls of boto3's client that ``spass.aws.objects`` makes."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Final

from botocore.exceptions import ClientError

_MAX_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    modified: float


class MemoryBucket:
    """A bucket. ``clock`` returns seconds since the epoch: the time of a put.

    A parameter that ``spass.aws.objects`` does not send raises AssertionError, so that no parameter is silently ignored.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()

    @property
    def keys(self) -> list[str]:
        """Return the keys of all objects, in order."""
        with self._lock:
            return sorted(self._objects)

    @property
    def objects(self) -> Mapping[str, bytes]:
        """Return the bodies of all objects by key."""
        with self._lock:
            return {key: stored.body for key, stored in self._objects.items()}

    def put_object(self, **call: Any) -> dict[str, Any]:
        assert call.keys() <= {"Bucket", "Key", "Body", "Tagging"}, call.keys()
        with self._lock:
            self._objects[call["Key"]] = _Object(bytes(call["Body"]), self._clock())
        return {}

    def get_object(self, **call: Any) -> dict[str, Any]:
        assert call.keys() <= {"Bucket", "Key", "Range"}, call.keys()
        stored = self._objects.get(call["Key"])
        if stored is None:
            error: Any = {"Error": {"Code": "NoSuchKey", "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": 404}}
            raise ClientError(error, "GetObject")
        if "Range" not in call:
            return {"Body": BytesIO(stored.body)}
        first, _, last = call["Range"].removeprefix("bytes=").partition("-")
        end = int(last) + 1 if last else len(stored.body)
        return {"Body": BytesIO(stored.body[int(first) : end]), "ContentRange": f"bytes {first}-{end - 1}/{len(stored.body)}"}

    def list_objects_v2(self, **call: Any) -> dict[str, Any]:
        assert call.keys() <= {"Bucket", "Prefix", "Delimiter", "MaxKeys", "ContinuationToken"}, call.keys()
        after, prefix = call.get("ContinuationToken", ""), call["Prefix"]
        with self._lock:
            matches = sorted((key, stored) for key, stored in self._objects.items() if key.startswith(prefix) and key > after)
        if delimiter := call.get("Delimiter"):  # only the folders, on one page
            tails = (key.removeprefix(prefix).partition(delimiter) for key, _ in matches)
            folders = sorted({f"{prefix}{head}{delimiter}" for head, separator, _ in tails if separator})
            return {"CommonPrefixes": [{"Prefix": folder} for folder in folders], "IsTruncated": False}
        page = matches[: min(call.get("MaxKeys", _MAX_KEYS), _MAX_KEYS)]
        contents = [{"Key": key, "LastModified": datetime.fromtimestamp(stored.modified, UTC)} for key, stored in page]
        more = {"IsTruncated": True, "NextContinuationToken": page[-1][0]} if len(page) < len(matches) else {"IsTruncated": False}
        return {"Contents": contents, **more} if contents else more

    def delete_objects(self, **call: Any) -> dict[str, Any]:
        assert call.keys() <= {"Bucket", "Delete"}, call.keys()
        with self._lock:
            for entry in call["Delete"]["Objects"]:
                self._objects.pop(entry["Key"], None)
        return {}
