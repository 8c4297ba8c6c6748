"""Each AWS call of storing, deciding and executing fails in every way: one effect or none, and the approval says which."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from spass.agents.registry import AgentRegistry
from spass.approvals.record import ApprovalStatus
from spass.approvals.responses import ApprovalView
from spass.core.errors import ApprovalDecided, SpassError
from spass.core.ids import ApprovalId
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.sampling import sampled
from tests.unit.agents.approval_desk import GRANTS, SPEC, Desk

pytestmark = pytest.mark.anyio

FAULTS: Final = [
    (Fault.CRASH_BEFORE, 1),
    (Fault.CRASH_AFTER, 1),
    (Fault.LOST_REPLY, 1),
    (Fault.LOST_REPLY, 2),
    (Fault.LOST_REPLY, 50),
    (Fault.REPEATED, 1),
    (Fault.THROTTLE, 2),
    (Fault.TIMEOUT, 50),
]
"""Faults, and the number of calls in a row that have them. The table retries each call once."""
CALLS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "append": ("rag_doc_append", {"index_id": "notes", "documents": [{"id": "c", "text": "gamma"}]}),
    "delete a document": ("rag_doc_delete", {"index_id": "notes", "doc_id": "a"}),
    "change a document": ("rag_doc_patch", {"index_id": "notes", "doc_id": "a", "metadata": {"lang": "en"}}),
    "replace an index": ("rag_index_create", {"index_id": "notes", "documents": [{"id": "c", "text": "gamma"}]}),
    "delete an index": ("rag_index_delete", {"index_id": "notes"}),
    "note": ("memory_write", {"note": "The team meets on Mondays."}),
    "edit": ("write_files", {"files": {"src/a.py": None, "src/c.py": "c\n"}}),
    "large edit": ("write_files", {"files": {"src/a.py": None, "src/c.py": "0123456789abcde\n"}, "times": 24_000}),
}
everything = pytest.mark.parametrize("name", CALLS)
every_fault = pytest.mark.parametrize(("fault", "times"), FAULTS)


@dataclass
class Attempt:
    """The outcome of some work under faults: its result, or None if it failed or its process died."""

    result: object = None
    error: SpassError | None = None
    crashed: bool = False

    @classmethod
    async def of(cls, work: Awaitable[object], plan: FaultPlan) -> "Attempt":
        try:
            with inject(plan):
                return cls(await work)
        except Crash:
            return cls(crashed=True)
        except SpassError as error:
            return cls(error=error)


async def faulty_runs(
    prepare: Callable[[Desk], Awaitable[ApprovalId | None]],
    work: Callable[[Desk, ApprovalId | None], Awaitable[object]],
    fault: Fault,
    times: int,
) -> list[tuple[Desk, ApprovalId | None, Attempt]]:
    """Run ``work`` once for each fourth of its AWS calls, which then has the fault, each time at a new desk."""
    runs: list[tuple[Desk, ApprovalId | None, Attempt]] = []
    counted = FaultPlan()
    desk = await Desk.open()
    approval = await prepare(desk)
    await Attempt.of(work(desk, approval), counted)
    assert len(counted.calls) > 1
    for at in sampled(range(len(counted.calls)), 4, f"{fault} {times}"):
        desk = await Desk.open()
        approval = await prepare(desk)
        runs.append((desk, approval, await Attempt.of(work(desk, approval), FaultPlan(fault, at, times))))
    return runs


@everything
@every_fault
async def test_a_call_is_stored_once_or_not_at_all_and_has_no_effect(name: str, fault: Fault, times: int) -> None:
    async def nothing(_: Desk) -> None:
        return None

    async def ask(desk: Desk, _: ApprovalId | None) -> object:
        return await desk.wait_for(*CALLS[name])

    expected = await (await Desk.open()).state()
    for desk, _, attempt in await faulty_runs(nothing, ask, fault, times):
        stored = await desk.stored()
        assert len(stored) <= 1
        assert attempt.result in (None, *(approval.id for approval in stored))
        assert await desk.state() == expected
        for approval in stored:  # it can be decided, although the turn may have failed
            assert (await desk.decide(approval.id)).status is ApprovalStatus.EXECUTED


@everything
@every_fault
async def test_an_approval_is_executed_once_or_not_at_all_and_says_which(name: str, fault: Fault, times: int) -> None:
    untouched = await (await Desk.open()).state()
    after = await executed_state(name)

    async def approve(desk: Desk, approval: ApprovalId | None) -> object:
        return await desk.decide(approval or ApprovalId(""))

    for desk, approval, attempt in await faulty_runs(lambda desk: desk.wait_for(*CALLS[name]), approve, fault, times):
        assert approval is not None
        status = await desk.status(approval)
        assert status in (ApprovalStatus.PENDING, ApprovalStatus.EXECUTED), attempt
        assert await desk.state() == (after if status is ApprovalStatus.EXECUTED else untouched)
        if isinstance(attempt.result, ApprovalView):
            assert attempt.result.status is status is ApprovalStatus.EXECUTED
        with suppress(ApprovalDecided):
            assert (await desk.decide(approval)).status is ApprovalStatus.EXECUTED
        assert await desk.state() == after


async def executed_state(name: str) -> object:
    desk = await Desk.open()
    await desk.decide(await desk.wait_for(*CALLS[name]))
    return await desk.state()


@every_fault
async def test_a_denial_counts_once_or_not_at_all(fault: Fault, times: int) -> None:
    untouched = await (await Desk.open()).state()

    async def deny(desk: Desk, approval: ApprovalId | None) -> object:
        return await desk.decide(approval or ApprovalId(""), "deny", reason="No.")

    for desk, approval, attempt in await faulty_runs(lambda desk: desk.wait_for(*CALLS["edit"]), deny, fault, times):
        assert approval is not None
        found = await desk.read(approval)
        assert found.status in (ApprovalStatus.PENDING, ApprovalStatus.DENIED)
        assert attempt.result is None or found.status is ApprovalStatus.DENIED
        assert (found.reason == "No.") == (found.status is ApprovalStatus.DENIED)
        with suppress(ApprovalDecided):
            await desk.decide(approval, "deny")
        assert await desk.status(approval) is ApprovalStatus.DENIED
        assert await desk.state() == untouched


@every_fault
async def test_a_call_that_fails_leaves_no_trace_but_its_error(fault: Fault, times: int) -> None:
    async def prepare(desk: Desk) -> ApprovalId:
        approval = await desk.wait_for(*CALLS["edit"])
        desk.agents = AgentRegistry([replace(SPEC, grants=replace(GRANTS, workspace=None))])
        return approval

    async def approve(desk: Desk, approval: ApprovalId | None) -> object:
        return await desk.decide(approval or ApprovalId(""))

    untouched = await (await Desk.open()).state()
    for desk, approval, attempt in await faulty_runs(prepare, approve, fault, times):
        assert approval is not None
        found = await desk.read(approval)
        assert found.status in (ApprovalStatus.PENDING, ApprovalStatus.FAILED)
        assert attempt.result is None or found.status is ApprovalStatus.FAILED
        assert (found.error is not None) == (found.status is ApprovalStatus.FAILED)
        assert await desk.state() == untouched
