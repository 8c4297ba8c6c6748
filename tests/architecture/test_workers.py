"""WORKERS and the files in functions/workers/ are the same list, and they agree with their queues."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from infra.workers import WORKERS, Worker
from spass.core.jobs import MAX_RECEIVES
from spass.sessions.compaction.job import JOB_SECONDS
from spass.web.worker_function import WorkerFunction

ROOT = Path(__file__).resolve().parents[2]
ROUTES_SHARE = "shared"  # the Lambda of routes with one function


def test_every_worker_has_a_row_and_a_file() -> None:
    files = {file.stem for file in (ROOT / "functions" / "workers").glob("*.py")} - {"__init__", ROUTES_SHARE}
    assert files == {worker.module for worker in WORKERS}


@pytest.mark.parametrize("worker", WORKERS, ids=lambda worker: worker.module)
def test_a_workers_file_exports_its_handler(worker: Worker) -> None:
    module = importlib.import_module(f"functions.workers.{worker.module}")
    assert isinstance(module.handler, WorkerFunction)
    assert module.__doc__


def test_a_worker_knows_when_the_queue_gives_a_message_up() -> None:
    assert _queue("QueueUrl")["RedrivePolicy"]["maxReceiveCount"] == MAX_RECEIVES


def test_a_compaction_has_an_hour_however_far_it_came() -> None:
    """As its record says: after it a machine that still runs does nothing more, and a message that still waits starts nothing."""
    assert json.loads((ROOT / "infra" / "compaction.asl.json").read_text())["TimeoutSeconds"] == JOB_SECONDS
    queue = _queue("CompactionQueueUrl")
    assert queue["VisibilityTimeout"] * queue["RedrivePolicy"]["maxReceiveCount"] < JOB_SECONDS


def _queue(output: str) -> dict[str, Any]:
    """The properties of the queue whose URL this output of the laptop's template holds."""
    template = json.loads((ROOT / "local" / "template.json").read_text())
    properties: dict[str, Any] = template["Resources"][template["Outputs"][output]["Value"]["Ref"]]["Properties"]
    return properties
