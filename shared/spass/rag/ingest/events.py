"""What the queue of jobs brings: events of the bucket, and what our own functions ask for."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_plus

from spass.core.ids import IndexId, TenantId, UploadId

_CREATED: Final = "ObjectCreated:"
_NO_VERSION: Final = ("", "null")  # of an object put while the bucket kept no versions
_SEQUENCER_DIGITS: Final = 64  # S3 sends 16 or 18
_SEQUENCER: Final = re.compile(rf"[0-9A-Fa-f]{{1,{_SEQUENCER_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class ObjectPut:
    """An object was put under the whole key ``key``. ``revision`` tells it from all others under this key: its ``version``, or
    where the bucket keeps none what else the event says of it. ``sequencer`` says when it was put, among all objects under the
    key: as strings, the greater is the later; it is empty if the event does not say. ``size`` is in bytes, None if unknown."""

    key: str
    version: str | None
    revision: str
    sequencer: str = ""
    size: int | None = None

    @property
    def is_folder(self) -> bool:
        """Whether it is what S3's console puts to show an empty folder."""
        return self.key.endswith("/") and self.size == 0


@dataclass(frozen=True, slots=True)
class IngestJob:
    """Go on with an upload from where it stands."""

    tenant: TenantId
    index: IndexId
    upload: UploadId


@dataclass(frozen=True, slots=True)
class MergeJob:
    """Merge segments of an index."""

    tenant: TenantId
    index: IndexId


@dataclass(frozen=True, slots=True)
class AccountJob:
    """Account for a call by its record, which could not be done when it ended."""

    tenant: TenantId
    record: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing that anybody here can do; ``why`` holds nothing of what it said."""

    why: str


Job: TypeAlias = "ObjectPut | IngestJob | MergeJob | AccountJob | Unknown"


def jobs_of(body: str) -> list[Job]:
    """What the body of a message asks for: nothing if it is the bucket's greeting, several things if it is several events.

    The bucket's events: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html
    """
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return [Unknown("the message is no JSON")]
    match said:
        case {"Event": "s3:TestEvent"}:
            return []
        case {"Records": [*records]}:
            return list(map(_put, records))
        case {"job": "merge", "tenant": str(tenant), "index": str(index)}:
            return [MergeJob(TenantId(tenant), IndexId(index))]
        case {"job": "ingest", "tenant": str(tenant), "index": str(index), "upload": str(upload)}:
            return [IngestJob(TenantId(tenant), IndexId(index), UploadId(upload))]
        case {"job": "account", "tenant": str(tenant), "record": dict(record)}:
            return [AccountJob(TenantId(tenant), record)]
    return [Unknown("the message is of no known kind")]


def _put(record: object) -> Job:
    match record:
        case {"eventName": str(name), "s3": {"object": {"key": str(key), **rest}}}:
            if not name.removeprefix("s3:").startswith(_CREATED):
                return Unknown("the event is not of an object that was put")
            version = next(_texts(rest, "versionId"), None)
            revision = next(_texts(rest, "versionId", "sequencer", "eTag"), "")
            size = rest.get("size")
            return ObjectPut(
                unquote_plus(key), version, revision, _comparable(rest.get("sequencer")), size if isinstance(size, int) else None
            )
    return Unknown("the event is of no known kind")


def _comparable(sequencer: object) -> str:
    """A sequencer as all of them compare as strings: AWS has the shorter of two filled with zeros on the right.
    (https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html)"""
    if not isinstance(sequencer, str) or not _SEQUENCER.fullmatch(sequencer):
        return ""
    return sequencer.lower().ljust(_SEQUENCER_DIGITS, "0")


def _texts(record: Mapping[Any, object], *names: str) -> Iterator[str]:
    values = (record.get(name) for name in names)
    return (value for value in values if isinstance(value, str) and value not in _NO_VERSION)
