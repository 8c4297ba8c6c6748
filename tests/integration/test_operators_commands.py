"""The commands of the runbooks and of the first deployment run as they are written, on an emulated AWS with what they name."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from spass.managed.records import RunStatus
from spass.rag.ingest.upload_record import Status
from spass.sessions.compaction.job import JobStatus
from tests.integration.conftest import REGION, Emulator
from tests.runbooks import COMMANDS, FIRST_DEPLOYMENT, RUNBOOKS

CLI: Final = Path(__file__).with_name("aws_cli.py")
EVERY: Final = [*COMMANDS, *(command for command in FIRST_DEPLOYMENT if command not in COMMANDS)]


@pytest.fixture
def environment(emulator: Emulator, tmp_path: Path) -> dict[str, str]:
    """Return the variables of an operator's shell, whose ``aws`` calls the emulator."""
    program = tmp_path / "aws"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CLI}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    access = {"AWS_ENDPOINT_URL": emulator.endpoint, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    failed = f"arn:aws:sqs:{REGION}:000000000000:{emulator.failed.rpartition('/')[2]}"
    names = dict.fromkeys(("FAILED_JOBS_ARN", "FAILED_COMPACTIONS_ARN", "FAILED_RUNS_ARN"), failed)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    names |= {"FAILED_JOBS_URL": emulator.failed, "BUCKET": emulator.bucket, "TWIN": "arn:aws:iam::000000000000:role/twin"}
    return {**access, **names, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "TABLE_NAME": emulator.table, "PATH": path}


@pytest.mark.parametrize("command", EVERY, ids=[" ".join(command.split()[1:3]) for command in EVERY])
def test_a_command_of_an_operator_runs(command: str, environment: dict[str, str]) -> None:
    process = subprocess.run(["bash", "-euc", command], env=environment, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.strip().startswith("{")


def test_each_runbook_has_one_command() -> None:
    assert {name for name, text in RUNBOOKS if text.count("```bash") != 1} == set()
    assert len(RUNBOOKS) > 15


def test_the_first_deployment_has_commands_of_aws() -> None:
    assert len(FIRST_DEPLOYMENT) == 7


def test_the_states_that_runbooks_name_exist() -> None:
    named = {state for _, text in RUNBOOKS for state in re.findall(r"\b(?:are|as|is) `([a-z]+)`", text)}
    assert {"failed", "succeeded"} <= named <= {*JobStatus, *RunStatus, *Status}
