"""WORKERS and the files in functions/workers/ are the same list, and they agree with their queue."""

import importlib
import json
from pathlib import Path

import pytest

from infra.workers import WORKERS, Worker
from spass.rag.ingest.worker import MAX_RECEIVES
from spass.web.functions import WorkerFunction

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
    resources = json.loads((ROOT / "local" / "template.json").read_text())["Resources"].values()
    policies = [resource["Properties"].get("RedrivePolicy") for resource in resources if resource["Type"] == "AWS::SQS::Queue"]
    assert [policy["maxReceiveCount"] for policy in policies if policy] == [MAX_RECEIVES]
