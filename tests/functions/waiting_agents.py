"""An agent whose writing calls wait for a person, and the requests of the person who decides."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spass.calls.datamark import remove_marks
from spass.core.messages import FinishReason, Role, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import Answer
from tests.functions.gateway import Gateway, Reply

NOTES: Final = "/a1/rag/indices/notes"
APPROVALS: Final = "/a1/approvals"
AGENT: Final = """
name: clerk
model: small
tools: [rag_doc_delete, rag_index_delete, rag_doc_append, rag_doc_patch, rag_index_create, memory_write, calculator]
approval: [rag_doc_delete, rag_index_delete, rag_doc_append, rag_doc_patch, rag_index_create, memory_write]
"""
DELETE_ALPHA: Final = ("rag_doc_delete", {"index_id": "notes", "doc_id": "a"})

Call = tuple[str, Mapping[str, Any]]


@dataclass
class Clerk:
    """The agent, an index with the documents ``a`` and ``b``, and a session of ``ada``."""

    gateway: Gateway
    token: str = "demo-admin-token"
    session: str = ""
    agent: str = "clerk"
    turns: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.write_file(AGENT)
        documents = [{"id": "a", "text": "alpha"}, {"id": "b", "text": "beta"}]
        assert self.gateway.send("POST", f"{NOTES}/documents", body={"documents": documents}).status == 200
        self.session = self.gateway.send("POST", "/a1/agents/clerk/sessions").json["id"]

    def write_file(self, text: str) -> None:
        """Replace the agent's file, as a deployment does."""
        services = self.gateway.services
        (services.settings.agents / "clerk.yaml").write_text(text)
        services.__dict__.pop("agents", None)

    @property
    def path(self) -> str:
        return f"/a1/agents/{self.agent}/sessions/{self.session}"

    def script(self, *calls: Call) -> None:
        """Let the model make ``calls`` and then answer."""
        self.turns += 1
        deltas = tuple(
            ToolCallDelta(place, f"call_{self.turns}_{place}", name, json.dumps(arguments))
            for place, (name, arguments) in enumerate(calls)
        )

        def answer(request: ChatRequest, _: CallContext) -> Answer:
            if request.messages[-1].role is Role.USER and deltas:
                return [ChatDelta(tool_calls=deltas, finish_reason=FinishReason.TOOL_CALLS)]
            return "It waits."

        self.gateway.model.script = answer

    def ask(self, *calls: Call, **more: Any) -> Reply:
        """Run a turn in which the model makes ``calls``."""
        self.script(*calls)
        reply = self.gateway.send("POST", f"{self.path}/messages", body={"message": "Do it.", **more}, token=self.token)
        assert reply.status == 200, reply.text
        return reply

    def wait_for(self, *call: Any) -> dict[str, Any]:
        """Run a turn in which the model makes one call. Return its approval."""
        result = self.ask(call or DELETE_ALPHA).json["tool_calls"][0]["result"]
        assert result["approval_required"] is True, result
        return self.get(result["approval_id"])

    def get(self, approval: str) -> dict[str, Any]:
        reply = self.gateway.send("GET", f"{APPROVALS}/{approval}")
        assert reply.status == 200, reply.text
        return dict(reply.json)

    def approvals(self, query: str = "", user: str = "ada") -> list[dict[str, Any]]:
        reply = self.gateway.send("GET", f"{APPROVALS}{query}", user=user)
        assert reply.status == 200, reply.text
        return [*reply.json["approvals"]]

    def decide(self, approval: str, decision: str = "approve", *, token: str | None = None, **more: Any) -> Reply:
        """Send a decision. ``reason`` is part of the body, ``user`` and ``headers`` of the request."""
        body = {"decision": decision} | ({"reason": more.pop("reason")} if "reason" in more else {})
        return self.gateway.send("POST", f"{APPROVALS}/{approval}", body=body, token=token or self.token, **more)

    def documents(self) -> list[str]:
        """Return the ids of the documents, or none if the index does not exist."""
        reply = self.gateway.send("GET", f"{NOTES}/documents")
        return [document["id"] for document in reply.json["documents"]] if reply.status == 200 else []

    def read_by_model(self) -> list[Any]:
        """Run a turn without calls. Return the tool results that its model request holds."""
        self.ask()
        request = self.gateway.model.requests[-1]
        return [json.loads(remove_marks(message.content)) for message in request.messages if message.role is Role.TOOL]
