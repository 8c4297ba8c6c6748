"""The stored outcome of an agent's run, of this release and of the one before."""

from hypothesis import given
from hypothesis import strategies as st

from spass.core.cost import Cost, CostSource
from spass.core.ids import MessageId, RequestId, SessionId, SummaryId
from spass.core.json import dump, read_object
from spass.core.messages import FinishReason, TokenUsage
from spass.core.run_result import AgentRun, CompactionIds, RunResult, ToolRecord, decode_run_result, encode_run_result
from spass.core.time import Timestamp

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT, lambda value: st.lists(value, max_size=3))
COUNT = st.integers(0, 10**9)
AMOUNT = st.decimals(0, 1000, places=12)
RICH = st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2).map(tuple)
APPROVALS = st.none() | st.dictionaries(TEXT, JSON, min_size=1, max_size=2)
TOOLS = st.builds(ToolRecord, TEXT, TEXT, JSON, JSON, st.booleans(), COUNT, RICH, APPROVALS)
COSTS = st.builds(Cost, AMOUNT, AMOUNT, st.sampled_from(CostSource), COUNT)
OUTCOMES = st.builds(
    RunResult,
    run=st.builds(AgentRun, TEXT.map(RequestId), TEXT, TEXT, TEXT),
    content=TEXT,
    created_at=TEXT.map(Timestamp),
    tools=st.lists(TOOLS, max_size=3).map(tuple),
    usage=st.builds(TokenUsage, COUNT, COUNT),
    cost=COSTS,
    turns=COUNT,
    finish_reason=st.sampled_from(FinishReason),
    metadata=st.dictionaries(TEXT, JSON, max_size=3),
    session_id=st.none() | TEXT.map(SessionId),
    message_id=st.none() | TEXT.map(MessageId),
    seq=st.none() | COUNT,
    compaction=st.none() | st.builds(CompactionIds, TEXT.map(SessionId), TEXT.map(SessionId), TEXT.map(SummaryId)),
    compaction_error=st.none() | TEXT,
)


@given(OUTCOMES)
def test_an_outcome_is_read_as_it_was_written(outcome: RunResult) -> None:
    assert decode_run_result(read_object(dump(encode_run_result(outcome)))) == outcome
