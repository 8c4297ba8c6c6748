"""The tool ``lineage_search``."""

import json
from dataclasses import dataclass, field, replace

import pytest

from spass.calls.scope import Scope
from spass.core.effects import ToolOutcome
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Json, Role, ToolCall
from spass.core.time import Timestamp
from spass.tools.builtin.lineage_search import LineageHit, LineageSearchResult
from spass.tools.results import MAX_RESULT_BYTES
from spass.tools.toolbox import Toolbox
from tests.unit.tools.fakes import scope_for, toolbox_of

pytestmark = pytest.mark.anyio

AGENT, SESSION = AgentName("librarian"), SessionId("ses_now")


def hit(seq: int, excerpt: str = "the zebra is Marty") -> LineageHit:
    return LineageHit(SessionId("ses_before"), seq, Role.USER, excerpt, Timestamp("2026-04-30T08:14:22.123Z"), 1.5)


@dataclass
class FakeLineageSearcher:
    """Returns ``result`` for every query."""

    result: LineageSearchResult
    queries: list[tuple[SessionId | None, str, int]] = field(default_factory=list)

    async def search(self, scope: Scope, query: str, limit: int) -> LineageSearchResult:
        self.queries.append((scope.session, query, limit))
        return self.result


@pytest.fixture
def lineage_searcher() -> FakeLineageSearcher:
    return FakeLineageSearcher(LineageSearchResult((hit(3),), 40, truncated=False))


@pytest.fixture
def box(lineage_searcher: FakeLineageSearcher) -> Toolbox:
    return toolbox_of(lineage_search=lineage_searcher)


async def call(box: Toolbox, arguments: str, scope: Scope | None = None) -> ToolOutcome:
    scope = scope or scope_for().for_agent(AGENT, SESSION)
    return await box.execute(scope, ToolCall("c1", "lineage_search", arguments), allowed=["lineage_search"])


async def test_the_session_of_the_turn_is_searched(box: Toolbox, lineage_searcher: FakeLineageSearcher) -> None:
    finished = await call(box, '{"query": "zebra", "limit": 3}')
    assert lineage_searcher.queries == [("ses_now", "zebra", 3)]
    expected: Json = {
        "session_id": "ses_before",
        "seq": 3,
        "role": "user",
        "content": "the zebra is Marty",
        "created_at": "2026-04-30T08:14:22.123Z",
        "score": 1.5,
    }
    assert finished.result == {"results": [expected], "searched_messages": 40, "truncated": False}
    assert json.loads(finished.message.content) == finished.result


async def test_the_default_limit_is_five_messages(box: Toolbox, lineage_searcher: FakeLineageSearcher) -> None:
    await call(box, '{"query": "zebra"}')
    assert lineage_searcher.queries == [("ses_now", "zebra", 5)]


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
async def test_invalid_arguments_are_refused(box: Toolbox, lineage_searcher: FakeLineageSearcher, arguments: str) -> None:
    result = (await call(box, arguments)).result
    assert isinstance(result, dict)
    assert isinstance(error := result["error"], dict)
    assert error["code"] == "invalid_arguments"
    assert lineage_searcher.queries == []


async def test_outside_of_a_session_the_result_is_the_error_no_session(
    box: Toolbox, lineage_searcher: FakeLineageSearcher
) -> None:
    for answer in (
        (await call(box, '{"query": "zebra"}', scope_for())).result,
        (await call(box, '{"query": "zebra"}', scope_for().for_agent(AGENT))).result,
        (await box.execute_direct(scope_for(), "lineage_search", {"query": "zebra"})).body.result,
    ):
        assert isinstance(answer, dict)
        assert isinstance(error := answer["error"], dict)
        assert error["code"] == "no_session"
    assert lineage_searcher.queries == []


async def test_hits_beyond_the_result_limit_are_left_out(box: Toolbox, lineage_searcher: FakeLineageSearcher) -> None:
    lineage_searcher.result = LineageSearchResult(tuple(hit(seq, "\U0001f993" * 1200) for seq in range(20)), 20, truncated=False)
    finished = await call(box, '{"query": "zebra", "limit": 20}')
    assert len(finished.message.content.encode()) < MAX_RESULT_BYTES
    result = json.loads(finished.message.content)
    assert [entry["seq"] for entry in result["results"]] == list(range(len(result["results"])))
    assert 5 <= len(result["results"]) < 20
    assert result["truncated"] is True
    lineage_searcher.result = replace(lineage_searcher.result, results=lineage_searcher.result.results[:5])
    assert json.loads((await call(box, '{"query": "zebra"}')).message.content)["truncated"] is False
