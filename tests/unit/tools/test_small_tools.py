"""The tools ``current_datetime``, ``rag_query`` and ``think``."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from spass.core.messages import Json
from spass.tools.base import ToolError
from spass.tools.builtin.knowledge import RagQuery
from spass.tools.builtin.plain import CurrentDatetime, Think
from tests.unit.tools.fakes import FakeReader, rag_with, scope_for

pytestmark = pytest.mark.anyio


def fields(result: Json) -> dict[str, Json]:
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
async def test_the_time_is_now_in_the_requested_zone(zone: str) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    result = fields(await CurrentDatetime(timezone=zone).run(scope_for()))
    moment = datetime.fromisoformat(str(result["datetime"]))
    assert before <= moment <= datetime.now(UTC)
    assert result["timezone"] == zone
    assert result["datetime"] == f"{result['date']}T{result['time']}{result['utc_offset']}"
    assert result["weekday"] == moment.strftime("%A")


@pytest.mark.parametrize(
    "zone",
    ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "Europe", "berlin", "x\0y", "a" * 64, "UTC ", "ü", "."],
)
async def test_an_unknown_zone_is_an_error_that_names_valid_zones(zone: str) -> None:
    with pytest.raises(ToolError, match="Europe/Berlin"):
        await CurrentDatetime(timezone=zone).run(scope_for())


async def test_a_query_returns_hits_and_the_version_of_the_index() -> None:
    reader = FakeReader({("demo", "berlin"): ["Das Tor.", "Der Park.", "Der Fluss."]})
    result = await RagQuery(index_id="berlin", query="Tor?", top_k=2).run(scope_for(), rag_with(reader))
    assert result == {
        "index_id": "berlin",
        "version": 7,
        "results": [
            {"id": "d1", "text": "Das Tor.", "metadata": {"source": "shelf"}, "score": 0.9},
            {"id": "d2", "text": "Der Park.", "metadata": {"source": "shelf"}, "score": 0.8},
        ],
    }
    assert reader.queries == [("demo", "berlin", "Tor?", 2)]


async def test_a_query_finds_no_index_of_another_tenant() -> None:
    reader = FakeReader({("other", "berlin"): ["Geheim."]})
    with pytest.raises(ToolError) as caught:
        await RagQuery(index_id="berlin", query="Tor?").run(scope_for(), rag_with(reader))
    assert caught.value.code == "index_not_found"


async def test_hits_beyond_the_result_limit_are_omitted_and_counted() -> None:
    reader = FakeReader({("demo", "berlin"): ["x" * 8192] * 50})
    result = fields(await RagQuery(index_id="berlin", query="x", top_k=50).run(scope_for(), rag_with(reader)))
    assert isinstance(result["results"], list)
    assert len(result["results"]) + int(str(result["omitted"])) == 50
    assert len(str(result)) < 64 * 1024


async def test_think_returns_nothing() -> None:
    assert await Think(thought="The invoice is from March.").run(scope_for()) == {}


@pytest.mark.parametrize("thought", ["", " \n"])
def test_a_blank_thought_is_refused(thought: str) -> None:
    with pytest.raises(ValidationError):
        Think(thought=thought)
