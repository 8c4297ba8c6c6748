"""A new gateway with an emulated table and bucket for each test."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.awsrequest import AWSPreparedRequest
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber
from moto.core.common_types import TYPE_RESPONSE

from spass.aws.clients import Aws
from spass.sandbox.foreign import versions
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices
from tests.contained_kinds import IMAGE
from tests.functions.compaction_harness import CompactionHarness, SummaryScript
from tests.functions.gateway import Gateway, MotoAws
from tests.functions.managed_agents import TARGETS, ManagedClient
from tests.functions.operator_runs import add_operators
from tests.functions.state_machine import StateMachinePlayer
from tests.functions.waiting_agents import Clerk
from tests.functions.workspace_client import WorkspaceClient
from tests.recorded_rights import FILE, known_rights, recording
from tests.recording_runtime import RecordingRuntime
from tests.simulated.chats import Chats, virtual_clocks
from tests.unit.sandbox.foreign.stand_ins import StandIns
from tests.unit.virtual_time import BACKEND, VirtualLoop


@pytest.fixture(scope="session")
def _unrecorded() -> Iterator[list[str]]:
    """Return the calls that functions made and that ``tests/infra/recorded_rights.json`` does not have."""
    unrecorded: list[str] = []

    def record(function: str, right: str) -> None:
        if right not in known_rights().get(function, ()):
            unrecorded.append(f"{function}: {right}")

    with recording(record):
        yield unrecorded


@pytest.fixture(autouse=True)
def _check_rights(_unrecorded: list[str]) -> Iterator[None]:
    """Fail if a function made a call whose right is not recorded. The roles of the function must allow it: add it to the file."""
    yield
    found = sorted(set(_unrecorded))
    _unrecorded.clear()
    assert found == [], f"{FILE.name} does not have these calls"


@pytest.fixture
def aws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    """Return a table and a bucket in memory. Tests with the mark ``moto`` get moto's bucket, which has more features."""
    if request.node.get_closest_marker("moto") is None:
        yield MemoryAws(TARGETS)
        return
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    _serialize_calls(monkeypatch)
    with mock_aws():
        aws = MotoAws()
        aws.create_bucket()
        yield aws


@pytest.fixture
def gateway(tmp_path: Path, aws: Aws) -> Iterator[Gateway]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield Gateway(tmp_path, loop, aws)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, type[VirtualLoop]]]:
    """Run asynchronous tests in virtual time."""
    return BACKEND


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncIterator[Chats]:
    with virtual_clocks():
        yield Chats(tmp_path)


@pytest.fixture
def client(gateway: Gateway) -> ManagedClient:
    """A client of managed agents, whose gateway has a scheduler and a queue for runs."""
    gateway.services.settings = replace(gateway.services.settings, job_targets=TARGETS)
    return ManagedClient(gateway)


@pytest.fixture
def stand_ins(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Stand-ins for the SDKs of foreign agents, which ``gateway`` runs."""
    monkeypatch.setattr(versions, "_answers", {})
    (tmp_path / "machine").mkdir()
    stand_ins = StandIns(tmp_path / "machine")
    gateway.services.foreign_agents = stand_ins.foreign_agents()
    return stand_ins


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingRuntime:
    """A runtime of containers that is the only program on the path."""
    (tmp_path / "runtime").mkdir()
    runtime = RecordingRuntime(tmp_path / "runtime")
    runtime.contain(IMAGE)
    monkeypatch.setenv("PATH", runtime.path)
    return runtime


@pytest.fixture
def site(gateway: Gateway) -> WorkspaceClient:
    return WorkspaceClient(gateway)


@pytest.fixture
def clerk(gateway: Gateway) -> Clerk:
    return Clerk(gateway)


@pytest.fixture
def operators(gateway: Gateway) -> Gateway:
    """A gateway with the agents of three operators."""
    return add_operators(gateway)


@pytest.fixture
def harness(gateway: Gateway) -> CompactionHarness:
    model = SummaryScript()
    gateway.model, gateway.services = model, ScriptedServices(gateway.services.settings, model, gateway.aws)
    harness = CompactionHarness(gateway, StateMachinePlayer(gateway), model)
    gateway.set_config(compact_summary_model="dear")
    return harness


def _serialize_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let moto process one call at a time. It iterates over tables that other threads change."""
    process, lock = BotocoreStubber.process_request, threading.RLock()

    def process_alone(stubber: BotocoreStubber, request: AWSPreparedRequest) -> TYPE_RESPONSE | None:
        with lock:
            return process(stubber, request)

    monkeypatch.setattr(BotocoreStubber, "process_request", process_alone)
