"""The outputs of the emulated stack, as the gateway reads them."""

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from local.emulator import SCHEDULE_ROLE, StackOutputs, running_emulator
from local.home import Home
from local.signatures import AccessKey
from spass.redaction import text as redaction
from spass.web.services import Settings

OUTPUTS = StackOutputs(*(f"spass-local-{field.name}-1ABC" for field in fields(StackOutputs)))


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in OUTPUTS.variables().items():
        monkeypatch.setenv(name, value)
    redaction.reload_environment()
    yield
    monkeypatch.undo()
    redaction.reload_environment()


def test_the_settings_contain_every_output() -> None:
    settings = Settings.from_environment(OUTPUTS.variables())
    targets = settings.job_targets
    assert (settings.table, settings.bucket) == (OUTPUTS.table, OUTPUTS.bucket)
    assert (targets.queue, targets.compaction_queue, targets.runs_queue) == OUTPUTS.queues
    assert targets.compaction_machine == OUTPUTS.compaction_machine
    assert (targets.runs_queue_arn, targets.schedule_group) == (OUTPUTS.runs_queue_arn, OUTPUTS.schedule_group)
    assert targets.schedule_role == SCHEDULE_ROLE


def test_the_key_for_an_emulator_of_the_operator_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.environ", {"AWS_ENDPOINT_URL": "http://stack:4566", "PATH": "/bin"})
    for name, value in (("AWS_ACCESS_KEY_ID", "REALID"), ("AWS_SECRET_ACCESS_KEY", "real-secret")):
        monkeypatch.setitem(os.environ, name, value)
    home = Home(tmp_path)
    home.write_aws_config("http://127.0.0.1:4999", "eu-central-1", AccessKey("OLD", "old"))
    with running_emulator(home, 0, {}, []):
        assert os.environ["AWS_ENDPOINT_URL"] == "http://stack:4566"
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == "real-secret"
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


@pytest.mark.usefixtures("environment")
def test_the_names_of_the_resources_are_redacted() -> None:
    text = " ".join(OUTPUTS.variables().values())
    assert "spass-local" in text
    assert "spass-local" not in redaction.redact_environment(text)
