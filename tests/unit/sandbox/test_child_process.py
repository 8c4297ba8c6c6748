"""A child stops while it is measured, and computes again exactly when it may."""

import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from spass.sandbox.child_process import ChildFailed, ChildProcess

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the processor time of a child"),
]
BUSY = "import sys\nprint(flush=True)\nwhile True: pass"


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[ChildProcess]:
    """Yield a child that computes."""
    process = ChildProcess([sys.executable, "-c", BUSY], folder=tmp_path, environment={})
    try:
        await process.connect()
        await process.receive()
        yield process
    finally:
        process.kill()


def computes(child: ChildProcess, seconds: float = 10.0) -> bool:
    """Return True as soon as the child computes, and False if it does not within ``seconds``."""
    before, give_up = child.cpu_seconds(), time.monotonic() + seconds
    while time.monotonic() < give_up:
        if child.cpu_seconds() > before:
            return True
        time.sleep(0.001)
    return False


async def test_a_child_does_nothing_while_it_is_stopped_and_goes_on_after_it(child: ChildProcess) -> None:
    assert computes(child)
    with child.stopped():
        assert not computes(child, 0.3)
    assert computes(child)


async def test_a_child_that_has_written_no_line_is_not_stopped(tmp_path: Path) -> None:
    child = ChildProcess([sys.executable, "-c", "while True: pass"], folder=tmp_path, environment={})
    try:
        with child.stopped():
            assert computes(child)
    finally:
        child.kill()


async def test_a_paused_child_stays_paused_after_a_measurement(child: ChildProcess) -> None:
    child.pause()
    with child.stopped():
        pass
    assert not computes(child, 0.3)
    child.send({})
    assert computes(child)


async def test_a_child_that_is_paused_or_resumed_while_it_is_stopped_obeys_after_it(child: ChildProcess) -> None:
    with child.stopped():
        child.pause()
    assert not computes(child, 0.3)
    with child.stopped():
        child.send({})
        assert not computes(child, 0.3)
    assert computes(child)


@pytest.mark.parametrize("end", [lambda child: child.stop("was stopped"), lambda child: child.kill()], ids=["stop", "kill"])
async def test_a_child_that_is_stopped_can_be_killed(child: ChildProcess, end: Callable[[ChildProcess], None]) -> None:
    with child.stopped():
        end(child)
    with pytest.raises(ChildFailed):
        await child.receive()
    child.kill()
    with child.stopped():  # no process gets its signals any more
        pass
