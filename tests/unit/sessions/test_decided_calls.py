"""The results of calls that waited, as a model reads them in later turns."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from spass.approvals.ending import Ending
from spass.approvals.record import DECIDE_SECONDS, Approval
from spass.core.ids import ApprovalId, MessageId, random_suffix
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall
from spass.core.time import Timestamp
from spass.sessions.record import StoredMessage, ToolRun, TurnRecord, with_decisions
from spass.testing.faults import FaultPlan, inject
from tests.unit.approvals.waiting_calls import ANA, WaitingCalls, some_approval

pytestmark = pytest.mark.anyio

AT = Timestamp("2026-04-30T08:14:22.123Z")


@pytest.fixture
def calls() -> WaitingCalls:
    return WaitingCalls()


def waits(approval: ApprovalId) -> dict[str, Json]:
    return {"approval_required": True, "approval_id": approval, "preview": {}}


def turn(*results: tuple[Json, Sequence[ApprovalId]]) -> TurnRecord:
    """Return a turn with a call for each of ``results``, which mentions approvals."""
    called = tuple(ToolCall(f"call_{place}", "rag_index_delete", "{}") for place in range(len(results)))
    messages = [Message(Role.USER, "Do it."), Message(Role.ASSISTANT, "", called)]
    messages += [Message(Role.TOOL, json.dumps(result), tool_call_id=f"call_{n}") for n, (result, _) in enumerate(results)]
    messages.append(Message(Role.ASSISTANT, "Done."))
    stored = tuple(StoredMessage(MessageId(f"msg_{seq}"), seq, AT, message) for seq, message in enumerate(messages, 1))
    runs = tuple(ToolRun(call.id, call.name, 1, (), tuple(ids)) for call, (_, ids) in zip(called, results, strict=True))
    return TurnRecord("turn_1", stored, TokenUsage(), 1, FinishReason.STOP, runs)


async def read(calls: WaitingCalls, record: TurnRecord) -> list[Any]:
    """Return the tool results of ``record`` as a model reads them. The rest must be as it was recorded."""
    (decided,) = await with_decisions(calls.store, ANA, [record], calls.now)
    pairs = list(zip(record.messages, decided.messages, strict=True))
    assert [after for before, after in pairs if before.message.role is not Role.TOOL] == [
        before for before, _ in pairs if before.message.role is not Role.TOOL
    ]
    return [json.loads(after.message.content) for _, after in pairs if after.message.role is Role.TOOL]


def ending(calls: WaitingCalls, approval: Approval, reason: str | None = None) -> Ending:
    return Ending(calls.store, approval, reason, lambda: calls.now)


async def execute(calls: WaitingCalls, approval: Approval, result: Json) -> None:
    await calls.store.table.transact(await ending(calls, approval).execute(result), token=random_suffix())


async def test_an_outcome_replaces_the_result_of_the_call_that_waited(calls: WaitingCalls) -> None:
    executed, denied, failed, waiting = [await calls.put() for _ in range(4)]
    await execute(calls, executed, {"deleted": True})
    await ending(calls, denied, "Not today.").deny()
    error = {"code": "workspace_conflict", "message": "src/main.py has changed."}
    await ending(calls, failed).fail(error)
    record = turn(({"sum": 4}, ()), *((waits(one.id), [one.id]) for one in (executed, denied, failed, waiting)))
    unrelated, first, second, third, last = await read(calls, record)
    assert (unrelated, first, third, last) == ({"sum": 4}, {"deleted": True}, {"error": error}, waits(waiting.id))
    assert second["error"]["code"] == "approval_denied"
    assert second["error"]["message"].endswith("The reason: Not today.")


async def test_a_result_that_is_no_object_replaces_it_too(calls: WaitingCalls) -> None:
    approval = await calls.put()
    await execute(calls, approval, ["a", 1, None])
    assert await read(calls, turn((waits(approval.id), [approval.id]))) == [["a", 1, None]]


async def test_an_expired_or_deleted_approval_says_so(calls: WaitingCalls) -> None:
    approval, gone = await calls.put(), some_approval()
    calls.now += DECIDE_SECONDS
    results = await read(calls, turn((waits(approval.id), [approval.id]), (waits(gone), [gone])))
    assert [result["error"]["code"] for result in results] == ["approval_expired", "approval_not_found"]


async def test_the_approvals_of_a_delegate_are_replaced_one_by_one(calls: WaitingCalls) -> None:
    executed, waiting, cut = [await calls.put() for _ in range(3)]
    await execute(calls, executed, {"deleted": True})
    await execute(calls, cut, {"deleted": False})
    result: dict[str, Json] = {"agent": "clerk", "answer": "It waits.", "approvals": [waits(executed.id), waits(waiting.id)]}
    (decided,) = await read(calls, turn((result, [executed.id, waiting.id, cut.id])))
    ended = [{"approval_id": executed.id, "result": {"deleted": True}}, waits(waiting.id)]
    assert decided == {**result, "approvals": [*ended, {"approval_id": cut.id, "result": {"deleted": False}}]}


async def test_a_result_that_was_cut_gets_the_outcomes(calls: WaitingCalls) -> None:
    approval = await calls.put()
    await execute(calls, approval, {"deleted": True})
    cut: dict[str, Json] = {"truncated": True, "note": "The result was too long.", "beginning": "{"}
    (decided,) = await read(calls, turn((cut, [approval.id])))
    assert decided == {**cut, "approvals": [{"approval_id": approval.id, "result": {"deleted": True}}]}


async def test_outcomes_are_read_in_one_batch_and_only_if_a_call_waited(calls: WaitingCalls) -> None:
    approvals = [await calls.put() for _ in range(5)]
    waiting = [turn(*((waits(approval.id), [approval.id]) for approval in approvals))] * 2
    with inject(FaultPlan()) as plan:
        assert await with_decisions(calls.store, ANA, waiting, calls.now) == waiting
        assert [call.operation for call in plan.calls] == ["GetItem"] * 5
        plain = [turn(({"sum": 4}, ()))] * 3
        assert await with_decisions(calls.store, ANA, plain, calls.now) == plain
        assert len(plan.calls) == 5
