"""The last message of a turn says what the turn has used and cost, and no other message does."""

from typing import Any, Final

from spass.core.messages import FinishReason, TokenUsage
from spass.models.types import ChatDelta
from spass.testing.model import calls, in_turn
from tests.functions.compaction_harness import CompactionHarness
from tests.functions.gateway import Gateway
from tests.stream_grammar import of_type, parse_events

AGENT: Final = "/a1/agents/counting"
TURN: Final = [
    calls(("calculator", {"expression": "6*7"}), text="Let me see."),
    [ChatDelta("It is 42."), ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(30, 7))],
]
USAGE: Final = {"prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52}
COST: Final = "0.000064"  # at 1 and 2 US dollars for a million tokens


def history(gateway: Gateway, session: str, agent: str = AGENT) -> list[Any]:
    found: list[Any] = gateway.send("GET", f"{agent}/sessions/{session}/messages").json["messages"]
    return found


def start(gateway: Gateway, agent: str = AGENT) -> str:
    session: str = gateway.send("POST", f"{agent}/sessions", token="demo-admin-token", body={}).json["id"]
    return session


def usages(messages: list[Any]) -> list[tuple[Any, Any]]:
    return [(message["usage"], message["cost_usd"]) for message in messages]


def test_the_last_message_of_a_turn_has_the_usage_and_the_cost_of_its_reply(gateway: Gateway) -> None:
    gateway.model.script = in_turn([*TURN, *TURN])
    session = start(gateway)
    reply = gateway.send("POST", f"{AGENT}/sessions/{session}/messages", body={"message": "6 * 7?"})
    assert (reply.json["usage"], reply.headers["spass-cost-usd"]) == (USAGE, COST)
    assert usages(history(gateway, session)) == [(None, None)] * 3 + [(USAGE, COST)]
    gateway.send("POST", f"{AGENT}/sessions/{session}/messages", body={"message": "Once more?"})
    assert usages(history(gateway, session)) == ([(None, None)] * 3 + [(USAGE, COST)]) * 2


def test_a_stream_and_the_history_agree_and_imported_messages_have_no_usage(gateway: Gateway) -> None:
    gateway.model.script = in_turn(TURN)
    earlier = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    body = {"message_id": "m1", "messages": [*earlier, {"role": "user", "content": "6 * 7?"}]}
    events = parse_events(gateway.send("POST", "/c1/agents/counting/chat", body=body).content)
    (usage,), (done,) = of_type(events, "usage"), of_type(events, "done")
    assert (usage["usage"], usage["cost"]["usd"]) == (USAGE, COST)
    assert usages(history(gateway, done["session_id"])) == [(None, None)] * 5 + [(USAGE, COST)]


def test_a_summary_and_copied_turns_have_no_usage_and_the_source_keeps_it(harness: CompactionHarness) -> None:
    session = harness.session()
    before = usages(harness.messages(session))
    assert [usage for usage, _ in before if usage]
    successor = harness.compact_to_successor(session)
    assert usages(harness.messages(session)) == before
    assert set(usages(harness.messages(successor))) == {(None, None)}


def test_a_turn_without_a_price_costs_nothing_and_has_its_usage(gateway: Gateway) -> None:
    agent = "/a1/agents/costly"
    session = start(gateway, agent)
    reply = gateway.send("POST", f"{agent}/sessions/{session}/messages", token="demo-admin-token", body={"message": "Hi"})
    last = history(gateway, session, agent)[-1]
    assert (last["usage"], last["cost_usd"]) == (reply.json["usage"], "0")
