"""An edit that is stopped at any moment leaves no process, no folder and no model call. Progress is reported while it runs."""

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

from spass.core.messages import Message
from spass.tools.base import ToolError
from spass.tools.editor.aider import AiderEditor
from spass.tools.editor.protocol import EditRequest
from tests.unit.tools.editor.children import children
from tests.unit.tools.editor.scripted import PACKAGES, Scripted, block

pytestmark = pytest.mark.anyio

REQUEST = EditRequest("tenant", "Change it.", {"a.txt": "x\n"})
ANSWER = block("a.txt", "x\n", "y\n")


class SlowModel:
    """A model that answers after ``seconds``, and counts its open calls."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started = 0
        self.open = 0
        self.is_asked = asyncio.Event()

    async def ask(self, messages: Sequence[Message]) -> str:
        self.started += 1
        self.open += 1
        self.is_asked.set()
        try:
            await asyncio.sleep(self.seconds)
            return ANSWER
        finally:
            self.open -= 1


def ignore(_: str) -> None:
    """Ignore progress."""


async def stop_at(moment: Awaitable[object], model: SlowModel, temporary: Path) -> None:
    edit = asyncio.create_task(AiderEditor(PACKAGES, temporary=temporary).edit(REQUEST, model.ask, lambda _: False, ignore))
    await moment
    edit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await edit


async def test_a_stop_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    model = SlowModel(10)
    dice = random.Random(15)
    for _ in range(4):
        model.is_asked.clear()
        any_time = (asyncio.sleep(dice.random() * 1.5) for _ in range(4))
        moments = (asyncio.sleep(0), model.is_asked.wait(), *any_time)
        await asyncio.gather(*(stop_at(moment, model, tmp_path) for moment in moments))
        assert children() == []
        assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240
        assert model.open == 0
    assert 0 < model.started < 24


async def test_the_time_limit_includes_the_model(tmp_path: Path) -> None:
    model = SlowModel(10)
    started = time.monotonic()
    request = EditRequest("tenant", "Change it.", {"a.txt": "x\n"}, seconds=1.0)
    with pytest.raises(ToolError, match="took longer than 1 s") as caught:
        await AiderEditor(PACKAGES, temporary=tmp_path).edit(request, model.ask, lambda _: False, ignore)
    assert caught.value.code == "edit_timeout"
    assert time.monotonic() - started < 2
    assert model.open == 0
    assert children() == []


async def test_an_error_of_the_model_reaches_the_caller(tmp_path: Path) -> None:
    error = TimeoutError("of the model")

    async def fail(messages: Sequence[Message]) -> str:
        raise error

    with pytest.raises(TimeoutError) as caught:
        await AiderEditor(PACKAGES, temporary=tmp_path).edit(REQUEST, fail, lambda _: False, ignore)
    assert caught.value is error
    assert children() == []


async def test_each_stage_is_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    await AiderEditor(PACKAGES, temporary=tmp_path).edit(REQUEST, SlowModel(0.1).ask, lambda _: False, lines.append)
    assert lines == ["Starting the editor…", "Asking the model…", "Applying the edit…"]


def test_an_edit_works_in_an_event_loop_of_any_thread(tmp_path: Path) -> None:
    results: list[dict[str, str]] = []

    async def edit() -> None:
        results.append(dict((await Scripted(tmp_path, [ANSWER]).edit({"a.txt": "x\n"})).files))

    thread = threading.Thread(target=lambda: asyncio.run(edit()))
    thread.start()
    thread.join(20)
    assert results == [{"a.txt": "y\n"}]
