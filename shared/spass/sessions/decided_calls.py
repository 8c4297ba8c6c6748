"""The results of calls that waited for a person, as a model reads them in later turns. The history keeps what was recorded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spass.core.ids import ApprovalId, UserId
from spass.core.json import dump
from spass.core.messages import Json, Message
from spass.sessions.record import TurnRecord
from spass.store.tenant_store import TenantStore


async def with_decisions(store: TenantStore, user: UserId, turns: Sequence[TurnRecord], now: float) -> Sequence[TurnRecord]:
    """Return ``turns`` with the outcome of each approval that has ended by ``now`` in place of the result that mentions it. If no
    call waited, nothing is read.

    Raises:
        StorageUnavailable: AWS throttled all retries or was unreachable.
    """
    ids = dict.fromkeys(approval for turn in turns for run in turn.tools for approval in run.waiting)
    if not ids:
        return turns
    from spass.approvals.decision_text import decision_text
    from spass.approvals.store import read_approvals

    approvals = await read_approvals(store, user, [*ids])
    read = {approval: decision_text(approvals.get(approval), now) for approval in ids}
    outcomes = {approval: outcome for approval, outcome in read.items() if outcome is not None}
    return [_decide(turn, outcomes) for turn in turns]


def _decide(turn: TurnRecord, outcomes: Mapping[ApprovalId, Mapping[str, Json]]) -> TurnRecord:
    ended = {run.call_id: {name: outcomes[name] for name in run.waiting if name in outcomes} for run in turn.tools if run.waiting}
    messages = [
        replace(stored, message=_replace_result(stored.message, of_call))
        if (of_call := ended.get(stored.message.tool_call_id or ""))
        else stored
        for stored in turn.messages
    ]
    return replace(turn, messages=tuple(messages))


def _replace_result(message: Message, outcomes: Mapping[ApprovalId, Mapping[str, Json]]) -> Message:
    """Return the tool message with ``outcomes`` in its result."""
    result: dict[str, Any] = json.loads(message.content)
    own = outcomes.get(result.get("approval_id", ""))
    if own is not None:
        return replace(message, content=dump(own.get("result", own)))
    return replace(message, content=dump(_replace_mentions(result, outcomes)))


def _replace_mentions(result: Mapping[str, Any], outcomes: Mapping[ApprovalId, Mapping[str, Json]]) -> Json:
    """Return the result of a delegate with the outcomes of its calls among its ``approvals``. A result that was cut gets them."""
    entries: list[Mapping[str, Any]] = result.get("approvals", [])
    mentioned = [entry["approval_id"] for entry in entries]
    ended = {approval: {"approval_id": approval, **outcome} for approval, outcome in outcomes.items()}
    others = [entry for approval, entry in ended.items() if approval not in mentioned]
    return {**result, "approvals": [*(ended.get(entry["approval_id"], entry) for entry in entries), *others]}
