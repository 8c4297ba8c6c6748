"""``WORKERS`` has one row for each file in functions/workers/, and the limits in the code equal those of the queues."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from infra.workers import WORKERS, Worker
from spass.core.jobs import MAX_RECEIVES
from spass.sessions.compaction.job import JOB_SECONDS
from spass.web.startup import WorkerFunction

ROOT = Path(__file__).resolve().parents[2]
SHARED_FUNCTION = "shared"  # the Lambda that serves several routes; it is not a worker


def test_every_worker_has_a_row_and_a_file() -> None:
    files = {file.stem for file in (ROOT / "functions" / "workers").glob("*.py")} - {"__init__", SHARED_FUNCTION}
    assert files == {worker.module for worker in WORKERS}


@pytest.mark.parametrize("worker", WORKERS, ids=lambda worker: worker.module)
def test_a_workers_file_exports_its_handler(worker: Worker) -> None:
    module = importlib.import_module(f"functions.workers.{worker.module}")
    assert isinstance(module.handler, WorkerFunction)
    assert module.__doc__


def test_max_receives_equals_the_receive_count_of_the_job_queue() -> None:
    assert _queue("QueueUrl")["RedrivePolicy"]["maxReceiveCount"] == MAX_RECEIVES


def test_the_state_machine_and_the_queue_of_a_compaction_stop_within_its_time_limit() -> None:
    """The state machine stops after ``JOB_SECONDS``. A message that cannot start it goes to the dead-letter queue before that."""
    assert json.loads((ROOT / "infra" / "compaction.asl.json").read_text())["TimeoutSeconds"] == JOB_SECONDS
    queue = _queue("CompactionQueueUrl")
    assert queue["VisibilityTimeout"] * queue["RedrivePolicy"]["maxReceiveCount"] < JOB_SECONDS


def _queue(output: str) -> dict[str, Any]:
    """Return the properties of a queue in ``local/template.json``. ``output`` is the name of the output with the queue's URL."""
    template = json.loads((ROOT / "local" / "template.json").read_text())
    properties: dict[str, Any] = template["Resources"][template["Outputs"][output]["Value"]["Ref"]]["Properties"]
    return properties
