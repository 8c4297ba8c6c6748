"""Parse the body of a queue's message: a job of ours, or events of the bucket."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_plus

from spass.core.jobs import Job, job_of
from spass.rag.ingest.uploaded_file import UploadedFile, uploaded_file

_CREATED: Final = "ObjectCreated:"
_NO_VERSION: Final = ("", "null")  # an object that was put while the bucket kept no versions
_SEQUENCER_DIGITS: Final = 64  # S3 sends 16 or 18
_SEQUENCER: Final = re.compile(rf"[0-9A-Fa-f]{{1,{_SEQUENCER_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message or event that no worker can handle. ``why`` contains no text from it."""

    why: str


Task: TypeAlias = Job | UploadedFile


def split(body: str) -> list[str]:
    """Return the bodies of messages with one task each: a message of the bucket may hold several events."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return [body]
    match message:
        case {"Records": [_, _, *_] as events}:
            return [json.dumps({"Records": [event]}) for event in events]
    return [body]


def parse(body: str) -> list[Task | Unknown]:
    """Return the tasks of a message: several if it holds several events, none if it is the bucket's test event.

    The bucket's events: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return [Unknown("the message is not JSON")]
    match message:
        case {"Event": "s3:TestEvent"}:
            return []
        case {"Records": [*events]}:
            return [task for event in events for task in _file(event)]
    return [job_of(message) or Unknown("the message is not a known job")]


def _file(event: object) -> Iterator[UploadedFile | Unknown]:
    """Yield the file of ``event``. Skip the empty object that the S3 console puts for a folder."""
    match event:
        case {"eventName": str(name), "s3": {"object": {"key": str(quoted), **details}}}:
            key = unquote_plus(quoted)
            if not name.removeprefix("s3:").startswith(_CREATED):
                yield Unknown("the event does not tell of an object that was put")
            elif not (key.endswith("/") and details.get("size") == 0):
                version = next(_texts(details, "versionId"), None)
                revision = next(_texts(details, "versionId", "sequencer", "eTag"), "")
                file = uploaded_file(key, version, revision, _sequencer(details.get("sequencer")))
                yield file or Unknown("the key does not name an index of a tenant")
        case _:
            yield Unknown("the event is not known")


def _sequencer(sequencer: object) -> str:
    """Return a sequencer padded with zeros on the right, so that sequencers compare as strings. Empty if it is malformed.

    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html
    """
    if not isinstance(sequencer, str) or not _SEQUENCER.fullmatch(sequencer):
        return ""
    return sequencer.lower().ljust(_SEQUENCER_DIGITS, "0")


def _texts(details: Mapping[Any, object], *names: str) -> Iterator[str]:
    values = (details.get(name) for name in names)
    return (value for value in values if isinstance(value, str) and value not in _NO_VERSION)
