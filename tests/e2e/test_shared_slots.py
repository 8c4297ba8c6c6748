"""Code of one tenant of a running gateway that computes for long leaves room for the code of another."""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from spass.sandbox.launchers import missing_for_processes
from tests.e2e.conftest import Gateway, wait_until

pytestmark = pytest.mark.skipif(missing_for_processes() is not None, reason=str(missing_for_processes()))

UNTIL_TOLD: Final = (
    "import os, time\nopen('running', 'w').close()\nwhile not os.path.exists('told'): time.sleep(0.05)\nprint('told')"
)


def run_code(gateway: Gateway, token: str, code: str) -> dict[str, Any]:
    with gateway.client(token) as client:
        answer = client.post("/v1/tools/execute", json={"name": "code_interpreter", "arguments": {"code": code}})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()["result"]
    return result


def scratch_folders(gateway: Gateway) -> list[Path]:
    """Return the folders of cells whose code runs. A file in the folder of one that starts would stop its start."""
    return [file.parent for file in Path(tempfile.gettempdir()).glob(f"spass-code-{gateway.pid}-*/running")]


def test_cells_of_one_tenant_do_not_delay_the_code_of_another(gateway: Gateway) -> None:
    slots = os.cpu_count() or 1
    with ThreadPoolExecutor(slots + 1) as threads:
        busy = [threads.submit(run_code, gateway, "demo-token", UNTIL_TOLD) for _ in range(slots + 1)]
        wait_until(lambda: len(scratch_folders(gateway)) == slots)
        answer = run_code(gateway, "other-token", "print(1)")
        assert not any(cell.done() for cell in busy)
        while not all(cell.done() for cell in busy):  # each ends after a minute at the latest
            for folder in scratch_folders(gateway):
                with suppress(FileNotFoundError):  # its child has just ended
                    (folder / "told").touch()
            time.sleep(0.05)
    assert answer["output"] == "1\n"
    assert {cell.result()["output"] for cell in busy} == {"told\n"}
