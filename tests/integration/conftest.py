"""An emulated AWS in a child process of its own, shared by the session's tests; each test gets a tenant of its own."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
import httpx
import pytest

from spass.aws.clients import Aws, TenantStore
from spass.aws.job_targets import JobTargets
from spass.core.ids import TenantId

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import NotificationConfigurationTypeDef
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType

START_SECONDS = 60.0
REGION = "eu-central-1"
# Its standard input ends when this process does, however it ends: then it ends too.
MINISTACK = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
sys.argv = ["ministack"]
runpy.run_module("ministack", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running ministack and what stands in it: as the data stack makes it, but with names of our own.

    ``queue`` and ``failed`` are URLs: the queue that S3 tells of every object under ``uploads/``, and its dead letters. Nobody
    works it off: a test receives what it wants and gives the bodies to the worker. All tests of the session share it, so look for
    your own tenant; what was received and not deleted comes back after a second, and is a dead letter after the fifth time.
    """

    endpoint: str
    table: str
    bucket: str
    queue: str
    failed: str


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """ministack on a free loopback port, with table, bucket and queue. Nothing is kept after the session."""
    port = _free_port()
    home = tmp_path_factory.mktemp("ministack")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "PERSIST_STATE": "0", "MINISTACK_REGION": REGION}
    environment |= {"STATE_DIR": str(home / "state"), "S3_DATA_DIR": str(home / "s3"), "S3_PERSIST": "0"}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", MINISTACK],
            env=environment,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that whatever it starts dies with it
        )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_until_up(process, endpoint)
        yield _furnish(endpoint)
    finally:
        _kill(process)


@pytest.fixture(scope="session")
def aws(emulated_aws: Aws) -> Aws:
    """What tests work on. A module of faults may have another (``tests.simulated.memory``)."""
    return emulated_aws


@pytest.fixture(scope="session")
def emulated_aws(emulator: Emulator) -> Aws:
    """Our own clients on the emulator. They keep the endpoint and the credentials they were made with."""
    aws = Aws(table=emulator.table, bucket=emulator.bucket, job_targets=JobTargets(queue=emulator.queue))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", emulator.endpoint)
        patch.setenv("AWS_REGION", REGION)
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        for client in (aws._dynamodb, aws._s3, aws._sqs, aws._ssm):
            assert client.meta.endpoint_url == emulator.endpoint
    return aws


@pytest.fixture
def tenant() -> TenantId:
    """A tenant that no other test has."""
    return TenantId(f"t-{secrets.token_hex(6)}")


@pytest.fixture
def store(aws: Aws, tenant: TenantId) -> TenantStore:
    return aws.for_tenant(tenant)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_up(process: "subprocess.Popen[bytes]", endpoint: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"ministack ended with {process.returncode} before it answered"
        try:
            if httpx.get(f"{endpoint}/_localstack/health", timeout=1, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail(f"ministack did not answer within {START_SECONDS:.0f} s")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _furnish(endpoint: str) -> Emulator:
    session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)
    dynamodb = session.client("dynamodb", endpoint_url=endpoint)
    dynamodb.create_table(
        TableName="spass",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
    )
    dynamodb.update_time_to_live(TableName="spass", TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"})
    queue, failed = _queues(session.client("sqs", endpoint_url=endpoint))
    s3 = session.client("s3", endpoint_url=endpoint)
    s3.create_bucket(Bucket="spass", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    s3.put_bucket_versioning(Bucket="spass", VersioningConfiguration={"Status": "Enabled"})
    told: NotificationConfigurationTypeDef = {
        "QueueConfigurations": [
            {
                "QueueArn": f"arn:aws:sqs:{REGION}:000000000000:spass-jobs",
                "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "uploads/"}]}},
            }
        ]
    }
    s3.put_bucket_notification_configuration(Bucket="spass", NotificationConfiguration=told)
    return Emulator(endpoint, "spass", "spass", queue, failed)


def _queues(sqs: "SQSClient") -> tuple[str, str]:
    failed = sqs.create_queue(QueueName="spass-jobs-failed")["QueueUrl"]
    redrive = {"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:000000000000:spass-jobs-failed", "maxReceiveCount": 5}
    attributes: dict[QueueAttributeNameType, str] = {"VisibilityTimeout": "1", "RedrivePolicy": json.dumps(redrive)}
    return sqs.create_queue(QueueName="spass-jobs", Attributes=attributes)["QueueUrl"], failed
