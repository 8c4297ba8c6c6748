"""The bucket in memory answers every sequence of calls as an emulator's bucket does."""

from collections.abc import Iterator, Sequence
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st
from moto import mock_aws

from spass.aws.bucket import missing
from spass.testing.bucket import MemoryBucket

KEYS = st.sampled_from(["T/demo/a", "T/demo/a/b", "T/demo/b", "T/demo/ß", "T/other/a"])
RANGES = st.one_of(
    st.none(),
    st.integers(0, 9).map(lambda first: f"bytes={first}-"),
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda pair: f"bytes={min(pair)}-{max(pair)}"),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=8)),
        st.tuples(st.just("get"), KEYS, RANGES),
        st.tuples(st.just("list"), st.sampled_from(["T/demo/", "T/demo/a", "T/absent/"]), st.integers(1, 3)),
        st.tuples(st.just("head"), KEYS, st.none()),
        st.tuples(st.just("delete"), KEYS, KEYS),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def emulator_client() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="spass")
        yield client


def answer(client: Any, step: tuple[str, Any, Any]) -> object:
    match step:
        case "put", key, body:
            client.put_object(Bucket="spass", Key=key, Body=body)
            return None
        case "get", key, byte_range:
            try:
                response = client.get_object(Bucket="spass", Key=key, **({"Range": byte_range} if byte_range else {}))
            except ClientError as error:
                return error.response["Error"]["Code"]
            return response["Body"].read(), "ContentRange" in response
        case "head", key, _:
            try:
                return int(client.head_object(Bucket="spass", Key=key)["ContentLength"])
            except ClientError as error:
                return missing(error).__class__
        case "list", prefix, limit:
            return list(pages(client, prefix, limit))
        case _, one, other:
            client.delete_objects(Bucket="spass", Delete={"Objects": [{"Key": one}, {"Key": other}], "Quiet": True})
            return None


def pages(client: Any, prefix: str, limit: int) -> Iterator[list[str]]:
    more: dict[str, str] = {}
    while True:
        page = client.list_objects_v2(Bucket="spass", Prefix=prefix, MaxKeys=limit, **more)
        yield [entry["Key"] for entry in page.get("Contents", ())]
        if not page["IsTruncated"]:
            return
        more = {"ContinuationToken": page["NextContinuationToken"]}


@settings(max_examples=25)
@given(steps=STEPS)
def test_both_buckets_give_the_same_answers(emulator_client: Any, steps: Sequence[tuple[str, Any, Any]]) -> None:
    memory = MemoryBucket(lambda: 1_800_000_000.0)
    for page in list(pages(emulator_client, "", 1000)):
        if page:
            emulator_client.delete_objects(Bucket="spass", Delete={"Objects": [{"Key": key} for key in page], "Quiet": True})
    for step in steps:
        assert answer(memory, step) == answer(emulator_client, step), step
    assert [memory.keys] == list(pages(emulator_client, "", 1000))


def test_both_buckets_find_and_delete_the_same_versions(emulator_client: Any) -> None:
    emulator_client.create_bucket(Bucket="versioned")
    emulator_client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    key = {"Bucket": "versioned", "Key": "uploads/demo/a"}
    answers = []
    for client in (emulator_client, MemoryBucket(lambda: 1_800_000_000.0, versioned=True)):
        puts = [client.put_object(**key, Body=body) for body in (b"old", b"newer")]
        versions = [put["VersionId"] for put in puts]
        sizes = [client.head_object(**key, VersionId=version)["ContentLength"] for version in versions]
        bodies = [client.get_object(**key, VersionId=version)["Body"].read() for version in versions]
        client.delete_object(**key, VersionId=versions[0])
        with pytest.raises(ClientError) as error:
            client.get_object(**key, VersionId=versions[0])
        answers.append(([put["ETag"] for put in puts], sizes, bodies, error.value.response["Error"]["Code"]))
    assert answers[0] == answers[1]
