"""Compactions as those who ask for them see them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulated.compactions import Works, loop_time
from tests.unit.virtual_time import BACKEND

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Works]:
    with loop_time():
        yield Works(tmp_path)


def json_of(answer: "httpx.Response | None", status: int) -> Any:
    assert answer is not None
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_compaction_is_waited_for(works: Works) -> None:
    session = await works.session()
    before = await works.history(session)
    result = json_of(await works.compact(session), 200)
    successor = await works.head(result["successor_session_id"])
    assert result["summary_text"] == "Ada moves to Berlin on 3 May."
    assert (result["compacted_message_count"], result["kept_message_count"]) == (8, 4)
    assert (await works.head(session)).successor_session_id == successor.id
    print(works.points.calls)
    assert await works.history(session) == before
