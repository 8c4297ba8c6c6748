"""What the emulated stack has made, as the gateway is told of it."""

from collections.abc import Iterator
from dataclasses import fields

import pytest

from local.emulator import StackOutputs
from spass.redaction import text as redaction
from spass.web.services import Settings

STORES = StackOutputs(*(f"spass-local-{field.name}-1ABC" for field in fields(StackOutputs)))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in STORES.variables().items():
        monkeypatch.setenv(name, value)
    redaction.reload_environment()
    yield
    monkeypatch.undo()
    redaction.reload_environment()


def test_the_gateway_knows_each_of_them_by_its_own_name() -> None:
    settings = Settings.from_environment(STORES.variables())
    targets = settings.job_targets
    assert (settings.table, settings.bucket) == (STORES.table, STORES.bucket)
    assert (targets.queue, targets.compaction_queue) == STORES.queues
    assert targets.compaction_machine == STORES.compaction_machine


@pytest.mark.usefixtures("told")
def test_none_of_their_names_is_shown_to_anybody() -> None:
    told = " ".join(STORES.variables().values())
    assert "spass-local" in told
    assert "spass-local" not in redaction.redact_environment(told)
