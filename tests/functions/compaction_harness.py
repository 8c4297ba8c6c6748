"""A gateway with a simulated queue and state machine, and a scripted summary model."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spass.core.messages import FinishReason, Role, TokenUsage, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import ScriptedModel
from tests.functions.gateway import Gateway, Reply
from tests.functions.state_machine import StateMachinePlayer

PLAIN: Final = "/a1/agents/plain/sessions"
KEY: Final = {"Idempotency-Key": "key-1"}
ASYNC: Final = {"Prefer": "respond-async"}
SUMMARY: Final = "Ada moves to Berlin on 3 May and pays 1200 Euro."
STOPPED: Final = TokenUsage(10, 5)

Deltas = tuple[ChatDelta, ...]


def text_deltas(text: str, finish: FinishReason = FinishReason.STOP) -> Deltas:
    return (ChatDelta(text), ChatDelta(finish_reason=finish, usage=STOPPED))


@dataclass
class SummaryScript(ScriptedModel):
    """A scripted model. As ``small``, it is the model of the agents, and calls the calculator if a user message starts with
    "Calculate". As ``dear``, it writes summaries: it yields or raises ``summary``, after ``gate`` is set if there is one."""

    summary: Deltas | Exception = field(default_factory=lambda: text_deltas(SUMMARY))
    summaries: list[ChatRequest] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        if request.model != "dear":
            last = request.messages[-1]
            if last.role is Role.USER and last.content.startswith("Calculate"):
                call = ToolCallDelta(0, "call_1", "calculator", '{"expression": "6*7"}')
                yield ChatDelta(tool_calls=(call,), finish_reason=FinishReason.TOOL_CALLS, usage=STOPPED)
                return
            async for delta in super().chat(request, context):
                yield delta
            return
        self.summaries.append(request)
        if self.gate:
            await self.gate.wait()
        if isinstance(self.summary, Exception):
            raise self.summary
        for delta in self.summary:
            yield delta


@dataclass
class CompactionHarness:
    """A gateway that runs its compaction jobs."""

    gateway: Gateway
    machine: StateMachinePlayer
    model: SummaryScript

    def session(self, turns: int = 3, keep: int = 2, agent: str = "plain", **settings: object) -> str:
        """Create a session with the messages ``question 0``, ``question 1`` and so on, and return its id."""
        body = {"title": "Moving", "compact_strategy": "manual", "compact_keep_last_n": keep, **settings}
        created = self.gateway.send("POST", f"/a1/agents/{agent}/sessions", body=body)
        assert created.status == 201
        for number in range(turns):
            assert self.say(created.json["id"], f"question {number}", agent=agent).status == 200
        return str(created.json["id"])

    def say(self, session: str, message: str, *, agent: str = "plain", **headers: str) -> Reply:
        path = f"/a1/agents/{agent}/sessions/{session}/messages"
        return self.gateway.send("POST", path, body={"message": message}, headers=headers)

    def compact(
        self, session: str, headers: Mapping[str, str] | None = None, *, agent: str = "plain", raw: bytes | None = None
    ) -> Reply:
        return self.gateway.send("POST", f"/a1/agents/{agent}/sessions/{session}/compact", headers=headers, raw=raw)

    def compact_to_successor(self, session: str) -> str:
        """Compact the session and return the id of its successor."""
        reply = self.compact(session)
        assert reply.status == 200, reply
        return str(reply.json["successor_session_id"])

    def get(self, session: str, below: str = "", *, agent: str = "plain") -> Any:
        reply = self.gateway.send("GET", f"/a1/agents/{agent}/sessions/{session}{below}")
        assert reply.status == 200, reply
        return reply.json

    def messages(self, session: str, *, agent: str = "plain") -> list[dict[str, Any]]:
        """Return the history. Check that the numbers of the messages have no gaps."""
        messages: list[dict[str, Any]] = self.get(session, "/messages", agent=agent)["messages"]
        assert [message["seq"] for message in messages] == list(range(1, len(messages) + 1))
        return messages

    def job(self, job: str, **who: Any) -> Reply:
        return self.gateway.send("GET", f"/a1/jobs/{job}", **who)

    def seen(self, session: str) -> Any:
        """Return all that a client can see of a session."""
        return [self.get(session, below) for below in ("", "/messages", "/lineage")]
