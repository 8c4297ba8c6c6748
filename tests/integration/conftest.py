"""Fixtures for an emulated AWS. All tests of a session share its process, and each test gets its own tenant."""

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
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import httpx
import pytest

from spass.aws.clients import Aws
from spass.aws.job_targets import JobTargets
from spass.core.ids import TenantId
from spass.store.tenant_store import TenantStore
from tests.integration.own_loop import EmulatedAws

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import NotificationConfigurationTypeDef
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType

START_SECONDS = 60.0
REGION = "eu-central-1"
# The emulator exits when its standard input closes. That happens when this process exits, even if it is killed.
MINISTACK = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
sys.argv = ["ministack"]
runpy.run_module("ministack", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running ministack with the resources of the data stack, under other names.

    ``queue`` and ``failed`` are the URLs of the job queue and of its dead-letter queue. S3 sends an event to the job queue for
    every object under ``uploads/``. No worker polls the queue: a test receives messages and passes their bodies to the worker.
    All tests of the session share the queue, so a test must select the messages of its tenant. A message that is received and
    not deleted is delivered again after one second. After five receives it moves to the dead-letter queue.
    """

    endpoint: str
    table: str
    bucket: str
    queue: str
    failed: str


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with running_emulator(tmp_path_factory.mktemp("ministack")) as emulator:
        yield emulator


@contextlib.contextmanager
def running_emulator(home: Path) -> Iterator[Emulator]:
    """Run ministack on a free loopback port, with a table, a bucket and a queue. It persists nothing."""
    port = _free_port()
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
            start_new_session=True,  # so that its child processes are killed with it
        )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_until_ready(process, endpoint)
        yield _create_resources(endpoint)
    finally:
        _kill(process)


@pytest.fixture(scope="session")
def aws(emulated_aws: Aws) -> Aws:
    """Return the AWS clients of the tests. Modules that inject faults may override this fixture (``tests.simulated.memory``)."""
    return emulated_aws


@pytest.fixture(scope="session")
def emulated_aws(emulator: Emulator) -> Iterator[Aws]:
    """Return the product's clients for the emulator. They keep the endpoint and credentials of their creation."""
    aws = EmulatedAws(table=emulator.table, bucket=emulator.bucket, job_targets=JobTargets(queue=emulator.queue))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", emulator.endpoint)
        patch.setenv("AWS_REGION", REGION)
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        aws.connect()
        for client in (aws._s3, aws._sqs, aws._ssm):
            assert client.meta.endpoint_url == emulator.endpoint
    yield aws
    aws.own_loop.close()


@pytest.fixture
def tenant() -> TenantId:
    """Return a tenant that no other test uses."""
    return TenantId(f"t-{secrets.token_hex(6)}")


@pytest.fixture
def store(aws: Aws, tenant: TenantId) -> TenantStore:
    return aws.for_tenant(tenant)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: "subprocess.Popen[bytes]", endpoint: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"ministack exited with {process.returncode} before it answered a request"
        try:
            if httpx.get(f"{endpoint}/_localstack/health", timeout=1, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail(f"ministack did not answer a request within {START_SECONDS:.0f} s")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _create_resources(endpoint: str) -> Emulator:
    session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)
    dynamodb = session.client("dynamodb", endpoint_url=endpoint)
    dynamodb.create_table(
        TableName="spass",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "S"}],
    )
    dynamodb.update_time_to_live(TableName="spass", TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"})
    queue, failed = _create_queues(session.client("sqs", endpoint_url=endpoint))
    s3 = session.client("s3", endpoint_url=endpoint)
    s3.create_bucket(Bucket="spass", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    s3.put_bucket_versioning(Bucket="spass", VersioningConfiguration={"Status": "Enabled"})
    notifications: NotificationConfigurationTypeDef = {
        "QueueConfigurations": [
            {
                "QueueArn": f"arn:aws:sqs:{REGION}:000000000000:spass-jobs",
                "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "uploads/"}]}},
            }
        ]
    }
    s3.put_bucket_notification_configuration(Bucket="spass", NotificationConfiguration=notifications)
    return Emulator(endpoint, "spass", "spass", queue, failed)


def _create_queues(sqs: "SQSClient") -> tuple[str, str]:
    failed = sqs.create_queue(QueueName="spass-jobs-failed")["QueueUrl"]
    redrive = {"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:000000000000:spass-jobs-failed", "maxReceiveCount": 5}
    attributes: dict[QueueAttributeNameType, str] = {"VisibilityTimeout": "1", "RedrivePolicy": json.dumps(redrive)}
    return sqs.create_queue(QueueName="spass-jobs", Attributes=attributes)["QueueUrl"], failed
