"""Attack the streams of ``/c1``: with HEAD, with messages that no model can see, and with deletions at the worst moment."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pytest

from spass.core.ids import AgentName, SessionId, TenantId, UserId
from spass.journal.head import claim, stream_digest
from spass.models.errors import AttemptFailed
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.sessions.deletion import delete_session
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.writes import Put, Update
from spass.testing.faults import FaultPlan, inject
from tests.functions.gateway import Gateway
from tests.stream_grammar import read_events

T = TypeVar("T")
CHAT: Final = "/c1/agents/plain/chat"
ADA: Final = UserId("ada")
PLAIN: Final = AgentName("plain")
SECRET: Final = "The answer is a word of the user."


def body(content: str, **fields: Any) -> dict[str, Any]:
    return {"message_id": "m-1", "messages": [{"role": "user", "content": content}]} | fields


def test_head_of_a_running_stream_does_not_read_it(gateway: Gateway) -> None:
    store = gateway.aws.for_tenant(TenantId("demo"))
    asyncio.get_event_loop().run_until_complete(
        claim(store, stream_digest(ADA, PLAIN, "m-1"), "body", SessionId("ses_a"), "turn_1", time.time())
    )
    started = time.monotonic()
    reply = gateway.send("HEAD", f"{CHAT}/m-1")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert time.monotonic() - started < 1
    assert gateway.send("HEAD", f"{CHAT}/m-2").status == 404


@pytest.mark.parametrize("content", ["\u200b", "\u2060 \ufeff", "\u2800", "\U000e0041\U000e0042"])
def test_an_invisible_message_is_refused_before_a_session_or_stream_exists(gateway: Gateway, content: str) -> None:
    reply = gateway.send("POST", CHAT, body=body(content))
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert gateway.stored() == {}


def test_a_nul_in_the_id_of_an_imported_call_is_refused(gateway: Gateway) -> None:
    """The id becomes a part of the text that is stored and sent to a model."""
    entry = {"role": "tool", "content": "42", "tool_call_id": "call\0"}
    messages = [entry, {"role": "user", "content": "Hi"}]
    reply = gateway.send("POST", CHAT, body=body("Hi", messages=messages))
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert gateway.stored() == {}


async def fails_in_its_answer(request: ChatRequest, _: CallContext) -> AsyncGenerator[ChatDelta, None]:
    yield ChatDelta(SECRET)
    await asyncio.sleep(0.1)
    if "long" in request.messages[-1].content:
        yield ChatDelta(SECRET * 300)
    raise AttemptFailed("down")


@dataclass
class DeletingPlan(FaultPlan):
    """Delete the session as soon as its hold is released. Chunks of a stream take longer than other writes."""

    gateway: Gateway | None = None
    deleted: int = 0

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        write = call.parameters.get("write")
        if isinstance(write, Put) and "frames" in write.attributes:
            await asyncio.sleep(0.1)
        result = await run()
        if self.gateway is not None and isinstance(write, Update) and write.remove == ("hold",):
            store, session = self.gateway.aws.for_tenant(TenantId("demo")), SessionId(write.key.pk.rpartition("#")[2])
            self.gateway = None
            await delete_session(store, session, PLAIN, ADA, time.time())
            self.deleted += 1
        return result


@pytest.mark.parametrize("content", ["A short answer", "A long answer"])
def test_nothing_remains_of_a_turn_that_fails_while_its_session_is_deleted(gateway: Gateway, content: str) -> None:
    gateway.model.script = fails_in_its_answer
    with inject(plan := DeletingPlan(gateway=gateway)):
        events = read_events(gateway.send("POST", CHAT, body=body(content)))
    assert isinstance(plan, DeletingPlan)
    assert (plan.deleted, events[-1]["error"]["code"]) == (1, "upstream_error")
    assert [key for key in gateway.stored() if "SES#" in key or "STREAM#" in key] == []
    assert gateway.send("GET", f"{CHAT}/m-1").code == "stream_not_found"
