"""Bring back the versions of objects that were current at a time, by copying them within the bucket."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_COPY_OF: Final = "spass-restored-version"
_MISSING: Final = frozenset({"NoSuchKey", "NoSuchVersion"})


class State(Enum):
    """The result for an object: it was right, it is back, it differed and is set back, or it is gone."""

    RIGHT = "right"
    BACK = "brought back"
    SET_BACK = "set back"
    GONE = "gone"


class Version(NamedTuple):
    """A version of an object, but not a delete marker."""

    id: str
    modified: datetime
    etag: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class ObjectVersions:
    """The versions in a bucket, for a restore to the time ``at``.

    Objects of the gateway have names that are used once, so the version of an object that an item names is the one that was
    current at ``at``, also if it was hidden or deleted since. A version that was written since, with other bytes, is not the
    gateway's; it stays, below the copy.
    """

    client: "S3Client"
    bucket: str
    at: datetime

    def bring_back(self, folder: str, keys: Collection[str]) -> Mapping[str, State]:
        """Bring back the objects ``keys``, all of which begin with ``folder``. Return the state of each."""
        found: dict[str, list[Version]] = {key: [] for key in keys}
        for key, version in self._versions(folder):
            if key in found:
                found[key].append(version)
        return {key: self._bring_back(key, versions) for key, versions in found.items()}

    def has_version(self, key: str, version: str) -> bool:
        """Return whether the bucket still has this version of an object."""
        return any(name == key and one.id == version for name, one in self._versions(key))

    def _versions(self, prefix: str) -> Iterator[tuple[str, Version]]:
        for page in self.client.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=prefix):
            for one in page.get("Versions", ()):
                yield one["Key"], Version(one["VersionId"], one["LastModified"], one["ETag"], one["IsLatest"])

    def _bring_back(self, key: str, versions: Sequence[Version]) -> State:
        wanted = self._choose(versions)
        if wanted is None:
            return State.GONE
        current = next((version for version in versions if version.is_current), None)
        if current is not None and self._is_same(key, current, wanted):
            return State.RIGHT
        try:
            self.client.copy_object(
                Bucket=self.bucket,
                Key=key,
                CopySource={"Bucket": self.bucket, "Key": key, "VersionId": wanted.id},
                MetadataDirective="REPLACE",
                Metadata={_COPY_OF: wanted.id},
            )
        except ClientError as error:
            if error.response["Error"]["Code"] in _MISSING:  # it expired meanwhile
                return State.GONE
            raise
        return State.BACK if current is None else State.SET_BACK

    def _choose(self, versions: Sequence[Version]) -> Version | None:
        """Return the newest version up to ``at``. Versions are newest first. If there is none, the clocks of the table and the
        bucket differ, and the oldest version is the one that an item named at ``at``."""
        return next((version for version in versions if version.modified <= self.at), versions[-1] if versions else None)

    def _is_same(self, key: str, current: Version, wanted: Version) -> bool:
        """Return whether the current version has the bytes of ``wanted``. Encrypted copies have tags of their own."""
        if current.id == wanted.id or current.etag == wanted.etag:
            return True
        return self.client.head_object(Bucket=self.bucket, Key=key)["Metadata"].get(_COPY_OF) == wanted.id
