"""The outputs of the emulated stack, as the gateway reads them."""

from collections.abc import Iterator
from dataclasses import fields

import pytest

from local.emulator import SCHEDULE_ROLE, StackOutputs
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


@pytest.mark.usefixtures("environment")
def test_the_names_of_the_resources_are_redacted() -> None:
    text = " ".join(OUTPUTS.variables().values())
    assert "spass-local" in text
    assert "spass-local" not in redaction.redact_environment(text)
