"""A bucket in memory, strongly consistent, behind the calls of boto3's client that ``spass.aws`` makes."""

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import md5
from io import BytesIO
from typing import Any, Final

from botocore.exceptions import ClientError

from spass.core.time import timestamp

_MAX_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    modified: float


class MemoryBucket:
    """A bucket. ``clock`` returns seconds since the epoch: the time of a put. A ``versioned`` bucket keeps every version of an
    object.

    A parameter that ``spass.aws`` does not send raises AssertionError, so that no parameter is silently ignored.
    """

    def __init__(self, clock: Callable[[], float], *, versioned: bool = False) -> None:
        self._clock = clock
        self._versioned = versioned
        self._objects: dict[str, _Object] = {}
        self._versions: dict[tuple[str, str], _Object] = {}
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
        stored = _Object(bytes(call["Body"]), self._clock())
        answer = {"ETag": f'"{md5(stored.body, usedforsecurity=False).hexdigest()}"'}
        with self._lock:
            self._objects[call["Key"]] = stored
            if self._versioned:
                answer["VersionId"] = f"v{len(self._versions)}"
                self._versions[call["Key"], answer["VersionId"]] = stored
        return answer

    def head_object(self, **call: Any) -> dict[str, Any]:
        assert call.keys() <= {"Bucket", "Key", "VersionId"}, call.keys()
        return {"ContentLength": len(self._find("HeadObject", call).body)}

    def get_object(self, **call: Any) -> dict[str, Any]:
        assert call.keys() <= {"Bucket", "Key", "VersionId", "Range"}, call.keys()
        stored = self._find("GetObject", call)
        if "Range" not in call:
            return {"Body": BytesIO(stored.body)}
        first, _, last = call["Range"].removeprefix("bytes=").partition("-")
        end = min(int(last) + 1, len(stored.body)) if last else len(stored.body)
        if int(first) >= len(stored.body):
            error: Any = {"Error": {"Code": "InvalidRange", "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": 416}}
            raise ClientError(error, "GetObject")
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

    def generate_presigned_post(self, bucket: str, key: str, **call: Any) -> dict[str, Any]:
        """Return a form with the policy that S3 would get, but without a signature."""
        policy = {"expiration": timestamp(int(self._clock()) + call["ExpiresIn"]), "conditions": call["Conditions"]}
        encoded = b64encode(json.dumps(policy).encode()).decode()
        return {"url": f"https://{bucket}.invalid/", "fields": {**call["Fields"], "key": key, "policy": encoded}}

    def delete_object(self, **call: Any) -> dict[str, Any]:
        """Delete one version for good, as S3 does if the call names a version."""
        assert call.keys() == {"Bucket", "Key", "VersionId"}, call.keys()
        with self._lock:
            deleted = self._versions.pop((call["Key"], call["VersionId"]), None)
            if deleted is not None and self._objects.get(call["Key"]) is deleted:
                del self._objects[call["Key"]]
        return {}

    def delete_objects(self, **call: Any) -> dict[str, Any]:
        assert call.keys() <= {"Bucket", "Delete"}, call.keys()
        with self._lock:
            for entry in call["Delete"]["Objects"]:
                self._objects.pop(entry["Key"], None)
        return {}

    def _find(self, operation: str, call: Mapping[str, Any]) -> _Object:
        version = call.get("VersionId")
        stored = self._objects.get(call["Key"]) if version is None else self._versions.get((call["Key"], version))
        if stored is None:
            code = "NoSuchKey" if version is None else "NoSuchVersion"
            error: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": 404}}
            raise ClientError(error, operation)
        return stored
