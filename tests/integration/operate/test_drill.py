"""The drill finds each loss back or named, and a restore that does neither fails it."""

import asyncio
from pathlib import Path

import pytest

from operate.restore import Restore
from tests.drill.drill import Drill
from tests.drill.losses import LOSSES
from tests.integration.conftest import REGION, Emulator


@pytest.fixture(autouse=True)
def _emulated(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    access = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {"AWS_ENDPOINT_URL": emulator.endpoint, "AWS_DEFAULT_REGION": REGION, **access}.items():
        monkeypatch.setenv(name, value)


def test_each_planted_loss_is_back_or_named_and_a_second_drill_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asyncio.run(Drill.begin(tmp_path, "drill").take()) == []
    output = capsys.readouterr().out
    assert [loss.what for loss in LOSSES if f"ok     {loss.expected.value:<7}{loss.what}\n" not in output] == []
    assert "ok     the second restore changed nothing\n" in output


def restore_the_table_alone(restore: Restore) -> int:
    if not restore.recovery.exists(restore.target):
        restore.recovery.start(restore.storage.table, restore.target, restore.objects.at)
    return 0


def test_a_restore_that_forgets_the_objects_fails_the_drill(tmp_path: Path) -> None:
    losses = [loss for loss in LOSSES if loss.what.startswith(("index: delete markers", "workspace: the versions"))]
    problems = asyncio.run(Drill.begin(tmp_path, "forgetful", losses, restore_the_table_alone).take())
    assert problems == [f"{loss.what}: it should be {loss.expected.value}, and is neither back nor named." for loss in losses]
