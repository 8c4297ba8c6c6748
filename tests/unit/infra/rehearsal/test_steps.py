"""A step of the rehearsal fails when what it expects is not there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.rehearsal.processes import RehearsalFailed
from infra.rehearsal.steps import STEPS


def check(tmp_path: Path, printed: str, *, fails: bool) -> str:
    """Do the step of `operate check`, which prints this."""

    def operate(*_arguments: str) -> str:
        log.write_text(printed, encoding="utf-8")
        if fails:
            raise RehearsalFailed("python ended with status 1", log)
        return printed

    log = tmp_path / "log"
    step = next(step for step in STEPS if step.name == "operate check")
    rehearsal: Any = SimpleNamespace(operate=operate, now=tmp_path, log=log)
    return step.act(rehearsal)


def test_the_check_must_refuse_an_account_without_bootstrap(tmp_path: Path) -> None:
    assert check(tmp_path, "Run: make cdk ARGS='bootstrap aws://0/eu-central-1'", fails=True).startswith("refuses")
    with pytest.raises(RehearsalFailed, match="accepts an account without bootstrap"):
        check(tmp_path, "Nothing was found", fails=False)
    with pytest.raises(RehearsalFailed, match="status 1"):
        check(tmp_path, "Traceback", fails=True)
