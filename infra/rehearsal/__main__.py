"""`python -m infra.rehearsal` (`make rehearse`): deploy, use, upgrade and remove the gateway in an emulator of its own."""

import argparse
import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final

import httpx
from botocore.exceptions import BotoCoreError, ClientError

from infra.bundling import BundlingFailed
from infra.rehearsal.assemblies import Assemblies
from infra.rehearsal.differences import DIFFERENCES
from infra.rehearsal.emulator import running_emulator, running_model
from infra.rehearsal.processes import ROOT, RehearsalFailed, free_port
from infra.rehearsal.rehearsal import Rehearsal, new_token, write_operators_files
from infra.rehearsal.steps import STEPS, Step

_CACHE: Final = ROOT / ".cache" / "rehearsal"
_RUN: Final = "run-"
_FAILURES: Final = _CACHE / "failed"
_DESCRIPTION: Final = """Deploy, use, upgrade and remove prod in an emulator on this machine, which takes about eight minutes on
two cores and 3 GB of disk while it runs. Nothing is changed in AWS. Each step is printed with its time, then what differs from
AWS. The logs of a failure stay in .cache/rehearsal/failed, and the exit status is then 1."""
_EXPECTED: Final = (RehearsalFailed, BundlingFailed, BotoCoreError, ClientError, httpx.HTTPError, LookupError, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rehearsal and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.rehearsal", description=_DESCRIPTION)
    parser.add_argument("--port", type=int, help="the port of the emulator (default: a free one)")
    port: int | None = parser.parse_args(arguments).port
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another rehearsal of this checkout is running.")
            return 1
        try:
            status = _run(port)
        except KeyboardInterrupt:
            print("\nInterrupted.")
            return 130
    print(f"\nWhat differs from AWS ({len(DIFFERENCES)}):")
    for difference in DIFFERENCES:
        print(f"- {difference.name}: {difference.reason}")
    return status


def _run(port: int | None) -> int:
    """Rehearse in a new folder of the cache, whose files can be linked into it. Return the exit status."""
    start = time.monotonic()
    for left in (_FAILURES, *_CACHE.glob(f"{_RUN}*")):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=_RUN, dir=_CACHE, ignore_cleanup_errors=True) as folder:
        status = _rehearse(Path(folder), port)
    if status == 0:
        print(f"All steps passed in {time.monotonic() - start:.0f} s.")
    return status


def _rehearse(home: Path, port: int | None) -> int:
    """Run the steps with their files in ``home``. Print each, and the first that fails. Return the exit status."""
    log, token, model = home / "rehearsal.log", new_token(), free_port()
    (home / "temporary").mkdir()
    os.environ["TMPDIR"] = str(home / "temporary")  # so that what an interrupted program leaves there is removed too
    write_operators_files(home / "config", token, f"http://127.0.0.1:{model}/v1")
    assemblies = Assemblies(cache=_CACHE, home=home, config=home / "config", log=log)
    try:
        with running_emulator(home, port) as emulator, running_model(home, model):
            rehearsal = Rehearsal(home=home, log=log, token=token, assemblies=assemblies, emulator=emulator)
            return next((1 for step in STEPS if not _take(step, rehearsal)), 0)
    except RehearsalFailed as error:
        _report(home, "start", error)
        return 1


def _take(step: Step, rehearsal: Rehearsal) -> bool:
    """Do a step and print what it has seen. Return whether it passed."""
    begun = time.monotonic()
    print(f"{step.name:<18} ", end="", flush=True)
    try:
        seen = step.act(rehearsal)
        rehearsal.emulator.server.check()
    except _EXPECTED as error:
        print("failed")
        _report(rehearsal.home, step.name, rehearsal.emulator.server.failure() or error)
        return False
    print(f"ok {time.monotonic() - begun:6.1f} s   {seen}", flush=True)
    return True


def _report(home: Path, step: str, error: Exception) -> None:
    """Print which step failed and where the logs are, which outlive the folder of the rehearsal."""
    _FAILURES.mkdir(parents=True, exist_ok=True)  # what is left of an earlier failure may not be removable
    for file in (*home.glob("*.log"), *home.glob("emulator/logs/*.log")):
        shutil.copyfile(file, _FAILURES / file.name)
    log = error.log if isinstance(error, RehearsalFailed) else None
    print(f"\nThe step '{step}' failed: {error}")
    print(f"Its log: {_FAILURES / log.name if log is not None else _FAILURES}")


def _end(number: int, _frame: FrameType | None) -> None:
    """End with everything that was started: the exception leaves the blocks that started it."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
