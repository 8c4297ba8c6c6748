import time
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from spass.core.cost import Cost, CostSource, CostTally
from spass.core.effects import ToolOutcome
from spass.core.events import (
    Event,
    InferenceFinished,
    InferenceStarted,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
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
        ToolCallStarted(call),
        ToolCallFinished(ToolOutcome(call, {"expression": "2+2"}, 4, result, 1)),
        InferenceStarted(2),
        Token("Four.", 2),
        InferenceFinished(answer, FinishReason.STOP),
        TurnFinished(FinishReason.STOP, TokenUsage(30, 5)),
    ]
    outcome = collect(events)
    assert outcome.messages == [asking, result, answer]
    assert outcome.content == "Four."
    assert outcome.turns == 2
    assert outcome.usage == TokenUsage(30, 5)
    assert outcome.usage.total_tokens == 35
    assert [tool.call.name for tool in outcome.tool_calls] == ["calculator"]


def test_results_are_recorded_in_the_order_of_their_calls() -> None:
    def ask(*names: str) -> InferenceFinished:
        calls = tuple(ToolCall(name, "calculator", "{}") for name in names)
        return InferenceFinished(Message(Role.ASSISTANT, "", tool_calls=calls), FinishReason.TOOL_CALLS)

    def result(name: str) -> ToolCallFinished:
        message = Message(Role.TOOL, name, tool_call_id=name)
        return ToolCallFinished(ToolOutcome(ToolCall(name, "calculator", "{}"), {}, name, message, 1))

    outcome = collect([ask("a", "b", "c"), result("c"), result("a"), result("b"), ask("d", "e"), result("e"), result("d")])
    assert [message.tool_call_id for message in outcome.messages] == [None, "a", "b", "c", None, "d", "e"]
    assert [tool.call.id for tool in outcome.tool_calls] == ["a", "b", "c", "d", "e"]


def test_the_results_of_a_reply_with_very_many_calls_are_collected_in_linear_time() -> None:
    calls = tuple(ToolCall(f"call_{number}", "calculator", "{}") for number in range(10_000))
    results = [ToolCallFinished(ToolOutcome(call, {}, 1, Message(Role.TOOL, "1", tool_call_id=call.id), 1)) for call in calls]
    asking = InferenceFinished(Message(Role.ASSISTANT, "", tool_calls=calls), FinishReason.TOOL_CALLS)

    def seconds() -> float:
        started = time.process_time()
        outcome = collect([asking, *results[5000:], *results[:5000]])
        assert [tool.call for tool in outcome.tool_calls] == [*calls]
        return time.process_time() - started

    assert min(seconds() for _ in range(3)) < 1  # a tenth of it; one run may meet a collection of garbage


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


def test_a_part_of_a_request_counts_its_own_calls_and_adds_them_to_the_whole() -> None:
    whole, cost = CostTally(), Cost(Decimal(1), Decimal(2), CostSource.CATALOG, 1)
    part = whole.part()
    whole.add(cost, TokenUsage(1, 2))
    part.add(cost, TokenUsage(10, 20))
    part.part().add(cost, TokenUsage(100, 200))
    assert (part.total.usd, part.total.sub_calls, part.usage) == (Decimal(2), 2, TokenUsage(110, 220))
    assert (whole.total.usd, whole.total.sub_calls, whole.usage) == (Decimal(3), 3, TokenUsage(111, 222))


def test_a_request_without_model_calls_has_no_price_source() -> None:
    assert CostTally().total == Cost(Decimal(0), Decimal(0), CostSource.NONE, 0)
