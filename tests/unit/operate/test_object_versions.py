"""Versions of objects are brought back by copies, and nothing that is right is written."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import boto3
import pytest
from moto import mock_aws

from operate.object_versions import ObjectVersions, State

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET: Final = "objects"
FOLDER: Final = "T/demo/rag/"
KEY: Final = f"{FOLDER}a"
LATER: Final = datetime(2100, 1, 1, tzinfo=UTC)
EARLIER: Final = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator["S3Client"]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        s3 = boto3.client("s3", region_name="eu-central-1")
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        yield s3


def put(s3: "S3Client", body: bytes, key: str = KEY) -> str:
    return s3.put_object(Bucket=BUCKET, Key=key, Body=body, Tagging="lifetime=days")["VersionId"]


def body(s3: "S3Client") -> bytes:
    return s3.get_object(Bucket=BUCKET, Key=KEY)["Body"].read()


def count_versions(s3: "S3Client") -> int:
    return len(s3.list_object_versions(Bucket=BUCKET).get("Versions", ()))


def bring_back(s3: "S3Client", at: datetime = LATER) -> State:
    states = ObjectVersions(s3, BUCKET, at).bring_back(FOLDER, [KEY])
    assert list(states) == [KEY]
    return states[KEY]


def test_an_object_that_is_there_is_not_written(s3: "S3Client") -> None:
    put(s3, b"one")
    assert bring_back(s3) is State.RIGHT
    assert count_versions(s3) == 1


def test_an_object_below_a_delete_marker_is_back_with_its_tags_and_once(s3: "S3Client") -> None:
    put(s3, b"one")
    put(s3, b"other", f"{FOLDER}b")
    s3.delete_object(Bucket=BUCKET, Key=KEY)
    assert bring_back(s3) is State.BACK
    assert body(s3) == b"one"
    assert s3.get_object_tagging(Bucket=BUCKET, Key=KEY)["TagSet"] == [{"Key": "lifetime", "Value": "days"}]
    assert bring_back(s3) is State.RIGHT
    assert count_versions(s3) == 3


def test_an_object_of_which_no_version_is_left_is_gone(s3: "S3Client") -> None:
    version = put(s3, b"one")
    s3.delete_object(Bucket=BUCKET, Key=KEY)
    s3.delete_object(Bucket=BUCKET, Key=KEY, VersionId=version)
    assert bring_back(s3) is State.GONE


def test_a_version_that_expires_before_it_is_copied_is_gone(s3: "S3Client", monkeypatch: pytest.MonkeyPatch) -> None:
    version = put(s3, b"one")
    s3.delete_object(Bucket=BUCKET, Key=KEY)
    listed = [*ObjectVersions(s3, BUCKET, LATER)._versions(FOLDER)]
    s3.delete_object(Bucket=BUCKET, Key=KEY, VersionId=version)
    monkeypatch.setattr(ObjectVersions, "_versions", lambda *_: iter(listed))
    assert bring_back(s3) is State.GONE


def test_the_version_of_the_time_is_set_back_over_other_bytes_which_stay(s3: "S3Client") -> None:
    put(s3, b"one")
    put(s3, b"two")
    assert bring_back(s3, EARLIER) is State.SET_BACK, "the oldest version, because there is none up to that time"
    assert body(s3) == b"one"
    assert bring_back(s3, EARLIER) is State.RIGHT
    assert count_versions(s3) == 3


def test_the_version_of_the_very_moment_counts(s3: "S3Client") -> None:
    put(s3, b"one")
    put(s3, b"two")
    (newest,) = [one for one in s3.list_object_versions(Bucket=BUCKET)["Versions"] if one["IsLatest"]]
    assert bring_back(s3, newest["LastModified"]) is State.RIGHT
    assert body(s3) == b"two"


def test_the_same_bytes_in_a_later_version_are_right(s3: "S3Client") -> None:
    put(s3, b"one")
    put(s3, b"one")
    assert bring_back(s3, EARLIER) is State.RIGHT
    assert count_versions(s3) == 2


def test_a_copy_of_another_version_is_not_the_version_of_the_time(s3: "S3Client") -> None:
    put(s3, b"one")
    other = put(s3, b"two")
    s3.copy_object(
        Bucket=BUCKET,
        Key=KEY,
        CopySource={"Bucket": BUCKET, "Key": KEY, "VersionId": other},
        MetadataDirective="REPLACE",
        Metadata={"spass-restored-version": other},
    )
    assert bring_back(s3, EARLIER) is State.SET_BACK
    assert body(s3) == b"one"


def test_an_encrypted_copy_whose_tag_differs_is_recognised(s3: "S3Client", monkeypatch: pytest.MonkeyPatch) -> None:
    put(s3, b"one")
    s3.delete_object(Bucket=BUCKET, Key=KEY)
    assert bring_back(s3, EARLIER) is State.BACK
    objects = ObjectVersions(s3, BUCKET, EARLIER)
    versions = [one._replace(etag=one.id) for _, one in objects._versions(FOLDER)]
    monkeypatch.setattr(ObjectVersions, "_versions", lambda *_: ((KEY, one) for one in versions))
    assert objects.bring_back(FOLDER, [KEY]) == {KEY: State.RIGHT}


def test_a_version_of_an_upload_counts_also_below_a_delete_marker(s3: "S3Client") -> None:
    version = put(s3, b"one")
    s3.delete_object(Bucket=BUCKET, Key=KEY)
    objects = ObjectVersions(s3, BUCKET, LATER)
    assert objects.has_version(KEY, version)
    assert not objects.has_version(KEY, "another")
    assert not objects.has_version(KEY[:-1], version)


def test_all_pages_of_a_folder_are_read(s3: "S3Client", monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{FOLDER}{number:02}" for number in range(5)]
    for key in keys:
        put(s3, b"one", key)
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET, Prefix=FOLDER, PaginationConfig={"PageSize": 2})
    assert sum(1 for _ in pages) > 1
    assert set(ObjectVersions(s3, BUCKET, LATER).bring_back(FOLDER, keys).values()) == {State.RIGHT}
