"""Turns of agents of the kind ``rlm``, with a model that writes given replies and answers the queries of their code."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spass.calls.datamark import remove_marks
from spass.core.code_calls import Sandbox
from spass.core.messages import Role
from spass.models.types import CallContext, ChatRequest
from spass.sandbox.launchers import select_sandbox
from spass.testing.model import Answer
from tests.functions.gateway import Gateway, Reply
from tests.simulated.interpreter import InProcessSandbox

ASK: Final = "/v1/ask"
PROCESSES: Final = select_sandbox({"SPASS_SANDBOX": "process"})
SANDBOXES: Final[Sequence[Callable[[], Sandbox]]] = (
    InProcessSandbox,
    *([lambda: select_sandbox({"SPASS_SANDBOX": "process"})] if PROCESSES.unavailable is None else []),
)
"""A sandbox that confines nothing, and the processes of this machine, if it can confine them."""


def block(*lines: str) -> str:
    """Return a reply that runs these lines."""
    return "\n".join(("```python", *lines, "```"))


@dataclass
class Researcher:
    """A gateway whose model writes ``replies`` in turn, of which the last one repeats, and answers queries by ``sub``.

    ``questions`` are the requests of the agent's own model calls, ``queries`` those of its code.
    """

    gateway: Gateway
    sub: Callable[[str], Answer] = lambda prompt: f"re: {prompt}"
    replies: list[Answer] = field(default_factory=list)
    questions: list[ChatRequest] = field(default_factory=list)
    queries: list[ChatRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gateway.model.script = self.answer

    def answer(self, request: ChatRequest, _: CallContext) -> Answer:
        """Answer one call of the model."""
        if request.messages[0].role is not Role.SYSTEM:
            self.queries.append(request)
            return self.sub(request.messages[0].content)
        self.questions.append(request)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def send(self, *replies: Answer, context: Any = None, token: str = "demo-admin-token", **body: Any) -> Reply:
        """Ask the kind a question. The model writes ``replies``."""
        self.replies = [*replies]
        sent = {"input": "How many?", "agent": "rlm", "model": "small", "context": context, **body}
        return self.gateway.send("POST", ASK, body=sent, token=token)

    def ask(self, *replies: Answer, **more: Any) -> dict[str, Any]:
        """Return the answer to a question."""
        reply = self.send(*replies, **more)
        assert reply.status == 200, reply.text
        answer: dict[str, Any] = reply.json
        return answer

    def cells(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the results of the cells of an answer."""
        return [json.loads(result["content"]) for result in answer["tool_results"] if result["tool_name"] == "code_interpreter"]

    def read(self) -> str:
        """Return everything that the model read in the agent's last model call, without marks."""
        return "\n".join(remove_marks(message.content) for message in self.questions[-1].messages)
