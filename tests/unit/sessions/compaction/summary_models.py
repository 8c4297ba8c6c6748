"""Scripted summary models, and conversations to summarise."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.core.messages import FinishReason, Message, Role, ToolCall, ToolCallDelta
from spass.models import errors as llm
from spass.models.router import Router
from spass.models.types import ChatDelta, ChatRequest
from spass.sessions.compaction.plan import Summary
from spass.sessions.compaction.summary import Summarizer
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.model import Answer, ScriptedModel

WINDOWS: Final = {"tiny": 300, "small": 700, "roomy": 8000, "vast": 1_000_000}
"""Context windows of the summary models, in tokens."""


def config(summary_model: str | None = "small", **defaults: Any) -> GatewayConfig:
    """Return a configuration with these models and the agent's model. ``defaults`` are the tenant's settings."""
    served = [*WINDOWS, "own"]
    prices = {"usd_per_mtok_in": 1, "usd_per_mtok_out": 1}
    models = [{"name": name, "context_window": window, **prices} for name, window in WINDOWS.items()]
    return GatewayConfig.model_validate(
        {
            "llm": {"retries": 0, "backends": [{"name": "scripted", "provider": "ollama", "supported_models": served}]},
            "models": [*models, {"name": "own", "context_window": 5000}, {"name": "unserved", "context_window": 5000}],
            "defaults": {"compact_summary_model": summary_model},
            "tenants": [{"id": "acme", "defaults": defaults}],
        }
    )


def summary_deltas(text: str, reason: FinishReason = FinishReason.STOP) -> list[ChatDelta]:
    return [ChatDelta(text, finish_reason=reason)]


_CALL: Final = ToolCallDelta(0, "call_1", "calculator", "{}")
SECRET: Final = "sk-live-0123456789abcdef"

FAILURES: Final[dict[str, tuple[Answer, str]]] = {
    "no answer in time": (llm.BackendTimeout(SECRET), "upstream_error"),
    "not reachable": (llm.BackendUnavailable(SECRET), "upstream_error"),
    "breaks off": ([*summary_deltas("The beginning of"), llm.BackendUnavailable(SECRET)], "upstream_error"),
    "refuses our key": (llm.BackendAuthError(SECRET), "upstream_error"),
    "refuses the request": (llm.BackendBadRequest(SECRET), "upstream_rejected"),
    "does not support the request": (llm.BackendUnsupported(SECRET, param="messages"), "invalid_request"),
    "finds everything too long": (llm.BackendContextLength(SECRET), "context_length_exceeded"),
    "says nothing": ([ChatDelta(finish_reason=FinishReason.STOP)], "empty"),
    "says blanks": (summary_deltas(" \n\t "), "empty"),
    "writes only invisible characters": (summary_deltas("\u200b\u2060\U000e0041\ufeff"), "empty"),
    "says blank letters": (summary_deltas("\u2800\u3000"), "empty"),
    "says dots": (summary_deltas("...\n---"), "empty"),
    "only thinks": (summary_deltas("<think>Ana has"), "empty"),
    "calls a tool": ([ChatDelta(tool_calls=(_CALL,), finish_reason=FinishReason.TOOL_CALLS)], "tool_calls"),
    "calls a tool and chats": ([ChatDelta("One moment.", (_CALL,), FinishReason.TOOL_CALLS)], "tool_calls"),
    "refuses": ([ChatDelta(refusal="I can't.", finish_reason=FinishReason.STOP)], "refused"),
    "refuses half-way": ([ChatDelta("Ana has", refusal="I can't.", finish_reason=FinishReason.STOP)], "refused"),
    "is filtered": (summary_deltas("Ana has", FinishReason.CONTENT_FILTER), "refused"),
    "is cut off": (summary_deltas("Ana has", FinishReason.LENGTH), "too_long"),
    "thinks until it is cut off": (summary_deltas("", FinishReason.LENGTH), "too_long"),
    "never ends": (summary_deltas("word " * 3000), "too_long"),
}
"""Failures of a summary model, and the reason of each in the error's details."""


def conversation(turns: int, words: int = 12) -> list[Message]:
    """Return messages of ``turns`` turns, every third with a tool call. The first of the ``words`` words names the turn."""
    messages: list[Message] = []
    for turn in range(turns):
        text = f"turn-{turn} " + "word " * (words - 1)
        messages.append(Message(Role.USER, text))
        if turn % 3 == 1:
            call = ToolCall(f"call_{turn}", "calculator", json.dumps({"expression": f"{turn} + 1"}))
            messages.append(Message(Role.ASSISTANT, "", (call,)))
            messages.append(Message(Role.TOOL, f"result-{turn}", tool_call_id=call.id))
        messages.append(Message(Role.ASSISTANT, f"answer-{turn}"))
    return messages


def material(request: ChatRequest) -> list[dict[str, Any]]:
    """Return the lines of the transcript in a request."""
    return read(request.messages[-1].content.rpartition("\n\n")[0])


def read(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.split("\n")]


def instruction(request: ChatRequest) -> str:
    """Return the system prompt of a request."""
    return request.messages[0].content


def merges(request: ChatRequest) -> bool:
    """Return True if the request summarises summaries of parts."""
    return any("summary" in line for line in material(request))


def summarizer_over(model: ScriptedModel, config: GatewayConfig) -> Summarizer:
    """Return a summarizer over the real pipeline in front of ``model``."""
    cascade = Cascade(config)
    router = Router(config.llm, config.models, lambda _: None, provider_of=lambda *_: model)
    return Summarizer(Calls(config, router, cascade), cascade, config)


async def summarise(
    model: ScriptedModel,
    scope: Scope,
    messages: Sequence[Message],
    gateway: GatewayConfig | None = None,
    *,
    earlier: str | None = None,
    mask_observations: bool = True,
    fallback_model: str | None = "own",
) -> Summary:
    """Let ``model`` summarise ``messages``, through the real pipeline."""
    return await summarizer_over(model, gateway or config()).summarise(
        scope, messages, earlier=earlier, mask_observations=mask_observations, fallback_model=fallback_model
    )


def questions(requests: Iterable[ChatRequest]) -> list[str]:
    """Return the questions of users in the transcripts of ``requests``."""
    return sorted(line["user"] for request in requests for line in material(request) if "user" in line)


def summary_model(writes: Callable[[ChatRequest], Answer]) -> ScriptedModel:
    """Return a model that answers each request with the result of ``writes``."""
    return ScriptedModel(lambda request, _: writes(request))
