"""Requests of each kind that stream a turn, with a model whose answer takes longer than the time between two renewals."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final

from spass.core.ids import AgentName, SessionId, UserId
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCallDelta
from spass.journal.frames import Chunk
from spass.journal.head import StreamHead, read_head, stream_digest
from spass.models.errors import AttemptFailed, BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.sessions.record import TurnRecord
from spass.store import keys
from spass.store.idempotency import IdempotentRequest
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Fault, inject
from tests.simulated.chats import AGENT, TENANT, USER, Answer, Chats, Process, wait_while_paused
from tests.stream_grammar import of_type, receive

MODEL_SECONDS: Final = 22.0
_STOP_SECONDS: Final = 2.5
_USAGE: Final = TokenUsage(10, 5)
_ENTRIES: Final = [{"role": "user", "content": "before"}, {"role": "tool", "content": "42", "tool_call_id": "call_1"}]
_FULL: Final = [{"role": "user", "content": "x" * 2000}] * 12  # the next message of 2,000 characters fills the session
KINDS: Final = (
    "new session",
    "existing session",
    "new name",
    "known name",
    "full session",
    "full in mid-turn",
    "tools",
    "model error",
    "stopped",
    "messages with a key",
    "messages in a full session",
    "second attempt",
)


@dataclass
class ChatTurn:
    """A POST that streams a turn, and what the world was like before it. ``new_sessions`` is the number that it creates."""

    chats: Chats
    kind: str
    path: str = f"/c1/agents/{AGENT}/chat"
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    known: set[SessionId] = field(default_factory=set)
    is_failing: bool = False
    attempt: int = 1

    @classmethod
    async def prepare(cls, chats: Chats, kind: str) -> "ChatTurn":
        """Empty the world, and create what is there before a request of ``kind``."""
        chats.begin_anew()
        request = cls(chats, kind)
        chats.model.script = request.answer
        text = "hello"
        request.body = request.chat("m-1", text)
        match kind:
            case "new session":
                request.body["messages"] = [*_ENTRIES, *request.body["messages"]]
            case "new name":
                request.body |= {"session_id": "notes", "messages": [*_ENTRIES, *request.body["messages"]]}
            case "known name":
                await request.earlier(session_id="notes")
                request.body["session_id"] = "notes"
            case "full session":
                request.body = request.chat("m-1", text + "x" * 2000, session_id=await request.earlier(_FULL))
            case "full in mid-turn":
                entries = [{"role": "user", "content": "before"}] * 12
                request.body["session_id"] = await request.earlier(entries)
            case "messages with a key" | "messages in a full session":
                is_full = kind == "messages in a full session"
                session = await request.earlier(_FULL if is_full else None)
                text = text + "x" * 2000 if is_full else text
                request.path = f"/a1/agents/{AGENT}/sessions/{session}/messages"
                request.body = {"message": text, "stream": True}
                request.headers = {"Idempotency-Key": "key-1"}
            case _:
                request.body["session_id"] = await request.earlier()
        request.is_failing = kind == "model error"
        if kind == "second attempt":
            await request.lose_first_attempt()
        request.known = {session.id for session in chats.sessions()}
        return request

    def chat(self, message_id: str, text: str, **more: Any) -> dict[str, Any]:
        return {"message_id": message_id, "messages": [{"role": "user", "content": text}], **more}

    async def earlier(self, entries: list[dict[str, str]] | None = None, **more: Any) -> str:
        """Run an earlier turn and return its session."""
        body = self.chat("m-0", "earlier", **more)
        body["messages"] = [*(entries or []), *body["messages"]]
        answer = await self.chats.post(body)
        (done,) = of_type(receive(answer.body).events, "done")
        return str(done["session_id"])

    async def lose_first_attempt(self) -> None:
        """Crash at the commit, and wait until the lease has expired."""
        counted = Process()
        await ChatTurn(self.chats, self.kind, body=self.chat("m-2", "other", session_id=self.body["session_id"])).send(counted)
        commit = max(number for number, call in enumerate(counted.calls) if call.operation == "TransactWriteItems")
        process = Process(Fault.CRASH_BEFORE, at=commit)
        await self.send(process)
        assert process.crashed
        await asyncio.sleep(LEASE_SECONDS)
        self.attempt = 2

    async def answer(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        """Act as the model. Its first and last tokens are as far apart as a renewal."""
        await wait_while_paused()
        last = request.messages[-1]
        if not request.tools:  # a summary
            yield ChatDelta("short", finish_reason=FinishReason.STOP, usage=_USAGE)
            return
        if last.role is Role.TOOL or last.content == "earlier" or self.kind not in ("tools", "full in mid-turn"):
            if self.kind == "full in mid-turn" and last.role is Role.TOOL and not _is_compacted(request):
                raise BackendContextLength("too long")
            yield ChatDelta("Hel")
            await asyncio.sleep(MODEL_SECONDS if last.content != "earlier" else 0.1)
            await wait_while_paused()
            if self.is_failing:
                raise AttemptFailed("broken")
            yield ChatDelta("lo.", finish_reason=FinishReason.STOP, usage=_USAGE)
            return
        yield ChatDelta("I compute. ")
        calls = tuple(
            ToolCallDelta(n, f"call_{n}", "calculator", f'{{"expression": "{n}+1"}}')
            for n in range(2 if self.kind == "tools" else 1)
        )
        yield ChatDelta(tool_calls=calls, finish_reason=FinishReason.TOOL_CALLS, usage=_USAGE)

    async def send(self, process: Process | None = None, answer: Answer | None = None) -> Answer:
        return await self.chats.send("POST", self.path, self.body, headers=self.headers, process=process, answer=answer)

    async def stop(self) -> None:
        """Stop the turn, if it is one that a client stops."""
        if self.kind == "stopped":
            await asyncio.sleep(_STOP_SECONDS)
            await self.chats.stop(self.message_id)

    @property
    def message_id(self) -> str:
        """Return the name of the stream."""
        if not self.headers:
            return "m-1"
        request = IdempotentRequest(TENANT, "demo-user", UserId(USER), "POST", self.path, self.headers["Idempotency-Key"], "")
        return request.digest

    async def head(self) -> StreamHead | None:
        with inject(Process()):
            return await read_head(self.chats.store, self.digest)

    @property
    def digest(self) -> str:
        return stream_digest(UserId(USER), AgentName(AGENT), self.message_id)

    def journal(self, head: StreamHead) -> list[str]:
        """Return the ``data`` lines of the newest attempt that the journal has. Assert that they have no gaps."""
        prefix = keys.stream_chunk_prefix(head.digest, head.attempt)
        items = [item for item in self.chats.items() if str(item["sk"]).startswith(prefix)]
        chunks = [Chunk.of(item) for item in sorted(items, key=lambda item: str(item["sk"]))]
        assert [chunk.first for chunk in chunks] == [1, *(chunk.end for chunk in chunks[:-1])][: len(chunks)]
        return [frame.data for chunk in chunks for frame in chunk.frames]

    async def recorded(self) -> list[TurnRecord]:
        """Return the turns that record the message."""
        turns = [turn for session in self.chats.sessions() for turn in await self.chats.turns(session.id)]
        return [turn for turn in turns if turn.messages[0].message == Message(Role.USER, self.text)]

    def new_sessions(self) -> list[SessionId]:
        return [session.id for session in self.chats.sessions() if session.id not in self.known]

    @property
    def text(self) -> str:
        text: str = self.body["message"] if "message" in self.body else self.body["messages"][-1]["content"]
        return text

    @property
    def creates(self) -> int:
        """Return the number of sessions that the turn creates."""
        return 1 if "new" in self.kind or "full" in self.kind else 0


def _is_compacted(request: ChatRequest) -> bool:
    return any("[compaction summary" in message.content for message in request.messages)
