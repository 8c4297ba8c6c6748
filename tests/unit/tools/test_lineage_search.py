"""The tool by which an agent asks for what a summary forgot."""

import json
from dataclasses import dataclass, field, replace

import pytest

from spass.calls.scope import Scope
from spass.core.events import ToolCallFinished
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Json, Role, ToolCall
from spass.core.time import Timestamp
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.tools.lineage_searcher import LineageHit, LineageSearchResult
from spass.tools.results import MAX_RESULT_BYTES
from spass.tools.toolbox import Toolbox
from tests.unit.tools.fakes import FakeReader, rag_with, scope_for

pytestmark = pytest.mark.anyio

AGENT, SESSION = AgentName("librarian"), SessionId("ses_now")


def recalled(seq: int, excerpt: str = "the zebra is Marty") -> LineageHit:
    return LineageHit(SessionId("ses_before"), seq, Role.USER, excerpt, Timestamp("2026-04-30T08:14:22.123Z"), 1.5)


@dataclass
class FakeLineageSearcher:
    """Ancestors that recall the same whatever they are asked."""

    recalls: LineageSearchResult
    asked: list[tuple[SessionId | None, str, int]] = field(default_factory=list)

    async def search(self, scope: Scope, query: str, limit: int) -> LineageSearchResult:
        self.asked.append((scope.session, query, limit))
        return self.recalls


@pytest.fixture
def lineage_searcher() -> FakeLineageSearcher:
    return FakeLineageSearcher(LineageSearchResult((recalled(3),), 40, truncated=False))


@pytest.fixture
def box(lineage_searcher: FakeLineageSearcher) -> Toolbox:
    return Toolbox(rag_with(FakeReader()), Cascade(GatewayConfig()), lambda: lineage_searcher)


async def call(box: Toolbox, arguments: str, scope: Scope | None = None) -> ToolCallFinished:
    scope = scope or scope_for().for_agent(AGENT, SESSION)
    return await box.execute(scope, ToolCall("c1", "lineage_search", arguments), allowed=["lineage_search"])


async def test_it_searches_the_session_that_the_turn_runs_in(box: Toolbox, lineage_searcher: FakeLineageSearcher) -> None:
    finished = await call(box, '{"query": "zebra", "limit": 3}')
    assert lineage_searcher.asked == [("ses_now", "zebra", 3)]
    found: Json = {
        "session_id": "ses_before",
        "seq": 3,
        "role": "user",
        "content": "the zebra is Marty",
        "created_at": "2026-04-30T08:14:22.123Z",
        "score": 1.5,
    }
    assert finished.result == {"results": [found], "searched_messages": 40, "truncated": False}
    assert json.loads(finished.message.content) == finished.result


async def test_it_asks_for_five_messages_if_not_told_how_many(box: Toolbox, lineage_searcher: FakeLineageSearcher) -> None:
    await call(box, '{"query": "zebra"}')
    assert lineage_searcher.asked == [("ses_now", "zebra", 5)]


@pytest.mark.parametrize(
    "arguments",
    [
        "{}",
        '{"query": ""}',
        '{"query": "  "}',
        '{"query": 7}',
        json.dumps({"query": "x" * 501}),
        '{"query": "x", "limit": 0}',
        '{"query": "x", "limit": 21}',
        '{"query": "x", "session_id": "ses_other"}',
    ],
)
async def test_a_call_that_does_not_fit_is_told_so(box: Toolbox, lineage_searcher: FakeLineageSearcher, arguments: str) -> None:
    result = (await call(box, arguments)).result
    assert isinstance(result, dict)
    assert isinstance(error := result["error"], dict)
    assert error["code"] == "invalid_arguments"
    assert lineage_searcher.asked == []


async def test_where_there_is_no_session_it_says_that_nothing_was_left_out(
    box: Toolbox, lineage_searcher: FakeLineageSearcher
) -> None:
    nowhere = Toolbox(rag_with(FakeReader()), Cascade(GatewayConfig()))
    for answer in (
        (await call(box, '{"query": "zebra"}', scope_for())).result,
        (await call(box, '{"query": "zebra"}', scope_for().for_agent(AGENT))).result,
        (await call(nowhere, '{"query": "zebra"}')).result,
        (await box.execute_direct(scope_for(), "lineage_search", {"query": "zebra"})).result,
    ):
        assert isinstance(answer, dict)
        assert isinstance(error := answer["error"], dict)
        assert error["code"] == "no_session"
    assert lineage_searcher.asked == []


async def test_a_result_is_short_enough_for_a_model_and_says_what_is_left_out(
    box: Toolbox, lineage_searcher: FakeLineageSearcher
) -> None:
    lineage_searcher.recalls = LineageSearchResult(
        tuple(recalled(seq, "\U0001f993" * 1200) for seq in range(20)), 20, truncated=False
    )
    finished = await call(box, '{"query": "zebra", "limit": 20}')
    assert len(finished.message.content.encode()) < MAX_RESULT_BYTES
    result = json.loads(finished.message.content)
    assert [one["seq"] for one in result["results"]] == list(range(len(result["results"])))
    assert 5 <= len(result["results"]) < 20
    assert result["truncated"] is True
    lineage_searcher.recalls = replace(lineage_searcher.recalls, results=lineage_searcher.recalls.results[:5])
    assert json.loads((await call(box, '{"query": "zebra"}')).message.content)["truncated"] is False
