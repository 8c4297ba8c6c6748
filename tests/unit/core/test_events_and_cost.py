from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from spass.core.cost import Cost, CostSource, CostTally
from spass.core.events import (
    Event,
    InferenceFinished,
    InferenceStarted,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
    Usage,
    collect,
)
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall


def test_an_outcome_collects_messages_tool_calls_tokens_and_reason() -> None:
    call = ToolCall("call_1", "calculator", '{"expression": "2+2"}')
    asking = Message(Role.ASSISTANT, "", tool_calls=(call,))
    result = Message(Role.TOOL, "4", tool_call_id="call_1")
    answer = Message(Role.ASSISTANT, "Four.")
    events: list[Event] = [
        TurnStarted(),
        InferenceStarted(1),
        InferenceFinished(asking, FinishReason.TOOL_CALLS),
        Usage(TokenUsage(10, 2)),
        ToolCallStarted(call),
        ToolCallFinished(call, {"expression": "2+2"}, 4, result, 1),
        InferenceStarted(2),
        Token("Four."),
        InferenceFinished(answer, FinishReason.STOP),
        Usage(TokenUsage(20, 3)),
        TurnFinished(FinishReason.STOP),
    ]
    outcome = collect(events)
    assert outcome.messages == [asking, result, answer]
    assert outcome.content == "Four."
    assert outcome.turns == 2
    assert outcome.usage == TokenUsage(30, 5)
    assert outcome.usage.total_tokens == 35
    assert [record.name for record in outcome.tool_calls] == ["calculator"]


MONEY = st.decimals(0, 10, places=6)
COSTS = st.builds(Cost, usd=MONEY, eur=MONEY, source=st.sampled_from(CostSource), sub_calls=st.integers(1, 5))


@given(st.lists(COSTS, min_size=1))
def test_the_total_is_the_sum_with_the_weakest_source(costs: list[Cost]) -> None:
    tally = CostTally()
    for cost in costs:
        tally.add(cost)
    assert tally.total.usd == sum((cost.usd for cost in costs), Decimal(0))
    assert tally.total.sub_calls == sum(cost.sub_calls for cost in costs)
    order = [CostSource.UPSTREAM, CostSource.CATALOG, CostSource.NONE]
    assert order.index(tally.total.source) == max(order.index(cost.source) for cost in costs)


def test_a_request_without_model_calls_has_no_price_source() -> None:
    assert CostTally().total == Cost(Decimal(0), Decimal(0), CostSource.NONE, 0)
