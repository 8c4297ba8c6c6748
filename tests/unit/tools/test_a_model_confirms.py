"""A scripted model changes an index through the engine: it calls, reads the preview, and confirms."""

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from spass.agents.engine import Engine
from spass.agents.spec import AgentSpec
from spass.calls.datamark import remove_marks
from spass.calls.pipeline import Calls
from spass.core.events import ToolCallFinished
from spass.core.ids import IndexId, UserId
from spass.core.messages import FinishReason, Role, ToolCallDelta
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.rag.index.documents import NewDocument
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from tests.unit.rag.conftest import RagHarness
from tests.unit.tools.fakes import toolbox_of

pytestmark = pytest.mark.anyio

CONFIG = GatewayConfig.model_validate(
    {
        "llm": {"retries": 0, "backends": [{"provider": "openai", "supported_models": ["clerk"]}]},
        "models": [{"name": "clerk", "context_window": 1000}],
    }
)
BERLIN = IndexId("berlin")
TOOLS = ["rag_doc_append", "rag_doc_delete"]


@dataclass(slots=True)
class ConfirmingModel:
    """A model that makes each of ``calls`` (tool, arguments), and repeats a call with the token if it must be confirmed.
    ``second`` changes the arguments of the repeated call."""

    calls: list[tuple[str, dict[str, Any]]]
    second: dict[str, Any] = field(default_factory=dict)
    last: tuple[str, dict[str, Any]] = ("", {})

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        result: Any = json.loads(remove_marks(request.messages[-1].content)) if request.messages[-1].role is Role.TOOL else {}
        if result.get("confirm_required"):
            name, arguments = self.last
            yield self._call(name, {**arguments, **self.second, "confirm_token": result["confirm_token"]})
        elif self.calls:
            self.last = self.calls.pop(0)
            yield self._call(*self.last)
        else:
            yield ChatDelta("Done.", finish_reason=FinishReason.STOP)

    def _call(self, name: str, arguments: dict[str, Any]) -> ChatDelta:
        call = ToolCallDelta(0, f"c{len(self.calls)}", name, json.dumps(arguments))
        return ChatDelta(tool_calls=(call,), finish_reason=FinishReason.TOOL_CALLS)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        raise AssertionError("documents are embedded by the harness")

    async def aclose(self) -> None:
        return


async def run_turn(harness: RagHarness, clerk: ConfirmingModel) -> Sequence[Any]:
    """Return the results of the tools that the model called in one turn."""
    router = Router(CONFIG.llm, CONFIG.models, lambda _: "key", provider_of=lambda *_: clerk)
    cascade = Cascade(CONFIG)
    engine = Engine(
        Calls(CONFIG, router, cascade), toolbox_of(rag=harness.rag, cascade=cascade), lambda: harness.rag.reader, cascade
    )
    agent = AgentSpec(name="librarian", model="clerk", tools=tuple(TOOLS))
    identity = replace(harness.scope.caller.identity, allowed_models=("*",))
    scope = replace(harness.scope, caller=replace(harness.scope.caller, identity=identity, user=UserId("ada")))
    return [event.outcome.result async for event in engine.run(scope, agent, "Tidy up.") if isinstance(event, ToolCallFinished)]


async def contents(harness: RagHarness) -> dict[str, str]:
    page = await harness.rag.reader.documents(harness.scope, BERLIN)
    return {document.id: document.text for document in page.documents}


async def test_a_model_writes_in_two_steps(harness: RagHarness) -> None:
    await harness.rag.writer.append(harness.scope, BERLIN, [NewDocument(id="old", text="Veraltet.")])
    addition = {"index_id": "berlin", "documents": [{"id": "new", "text": "Neu."}]}
    results = await run_turn(
        harness, ConfirmingModel([("rag_doc_append", addition), ("rag_doc_delete", {"index_id": "berlin", "doc_id": "old"})])
    )
    assert [result.get("op") for result in results] == ["rag_doc_append", None, "rag_doc_delete", None]
    assert results[1] == {"index_id": "berlin", "doc_count": 2, "ingested": 1, "replaced": 0, "version": 2}
    assert results[3] == {"deleted": True}
    assert await contents(harness) == {"new": "Neu."}


async def test_a_model_cannot_confirm_another_call(harness: RagHarness) -> None:
    await harness.rag.writer.append(
        harness.scope, BERLIN, [NewDocument(id="old", text="Veraltet."), NewDocument(id="dear", text="Wichtig.")]
    )
    results = await run_turn(
        harness, ConfirmingModel([("rag_doc_delete", {"index_id": "berlin", "doc_id": "old"})], second={"doc_id": "dear"})
    )
    assert [result.get("error", {}).get("code") for result in results] == [None, "confirm_token_invalid"]
    assert await contents(harness) == {"dear": "Wichtig.", "old": "Veraltet."}
