"""The chat models that a tool may call, and one call of one of them."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from spass.calls.model_calls import ModelCalls
from spass.calls.scope import Scope
from spass.core.messages import Message
from spass.core.think_filter import ThinkFilter
from spass.models.backends import is_served
from spass.models.types import ChatReply, ChatRequest, ReplyBuilder
from spass.tenancy.config import GatewayConfig, ModelConfig
from spass.tools.base import ToolError

MAX_TOKENS: Final = 4096  # some models reason before they write, and some accept no larger limit
_MAX_NAMES: Final = 30
_MAX_NAME_CHARACTERS: Final = 80


class ChatModels:
    """Choose and call a chat model for a tool."""

    def __init__(self, calls: ModelCalls, config: GatewayConfig) -> None:
        self._calls = calls
        self._config = config

    def choose(self, scope: Scope, name: str | None, default: str | None) -> ModelConfig:
        """Return the chat model ``name``; without a name, ``default``, or else the first one that the token may use and a backend
        serves.

        Raises:
            ToolError: there is no such chat model, or the token may not use it. The message has the names that it may use.
        """
        allowed = {model.name: model for model in scope.caller.identity.chat_models(self._config)}
        if not allowed:
            raise ToolError("This token may not use any chat model. Answer without this tool.", code="model_not_allowed")
        if name is None:
            name = default if default in allowed else self._first_served(list(allowed))
        if name in allowed:
            return allowed[name]
        raise self._refusal(name, list(allowed))

    def _first_served(self, names: Sequence[str]) -> str:
        return next((name for name in names if is_served(self._config.llm, name)), names[0])

    def _refusal(self, name: str, allowed: Sequence[str]) -> ToolError:
        kinds = {model.name: model.kind for model in self._config.models}
        excerpt = repr(name[:_MAX_NAME_CHARACTERS])
        match kinds.get(name):
            case "chat":
                code, reason = "model_not_allowed", f"This token may not use the model {excerpt}."
            case "embedding":
                code, reason = "invalid_arguments", f"{excerpt} is an embedding model and cannot write text."
            case _:
                code, reason = "model_not_found", f"There is no model {excerpt}."
        return ToolError(f"{reason} Leave model out, or use one of: {', '.join(allowed[:_MAX_NAMES])}.", code=code)

    def model_round_trip(self, text: str) -> str:
        """Return ``text`` as a model reads it in the prompt of ``ask`` and as its repetition arrives in the reply."""
        return self._calls.model_round_trip(text)

    async def ask(
        self,
        scope: Scope,
        model: ModelConfig,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = MAX_TOKENS,
        temperature: float | None = None,
    ) -> ChatReply:
        """Return the reply of ``model`` without think text. The call passes the whole pipeline: limits, redaction, cost, audit.

        Raises:
            SpassError: the same as ``Calls.chat``.
        """
        request = ChatRequest(model.name, tuple(messages), temperature=temperature, max_tokens=max_tokens, stream=True)
        builder = ReplyBuilder()
        async with aclosing(self._calls.chat(scope, request)) as deltas:
            async for delta in deltas:
                builder.add(delta)
        reply = builder.reply
        think_filter = ThinkFilter(begins_thinking=model.begins_thinking)
        text = think_filter.feed(reply.message.content) + think_filter.flush()
        return replace(reply, message=replace(reply.message, content=text))
