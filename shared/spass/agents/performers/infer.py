"""Perform ``Infer``: one call of the pipeline of model calls."""

from collections.abc import AsyncGenerator
from dataclasses import replace

from spass.calls.model_calls import ModelCalls
from spass.calls.scope import Scope
from spass.core.effects import Infer
from spass.models.types import ChatDelta, ChatRequest


class InferPerformer:
    """Call models for one turn. ``defaults`` has the model, the offered tools and the sampling values that apply where an effect
    has none. Its ``stream`` is True, so that the timeout of a backend applies between bytes."""

    def __init__(self, calls: ModelCalls, scope: Scope, defaults: ChatRequest) -> None:
        self._calls = calls
        self._scope = scope
        self._defaults = replace(defaults, stream=True)

    def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        """Yield the reply in deltas. Errors are those of ``Calls.chat``."""
        return self._calls.chat(self._scope, self._request(effect))

    def begins_thinking(self, effect: Infer) -> bool:
        """Return whether the model begins its replies with think text."""
        return self._calls.begins_thinking(effect.model or self._defaults.model)

    def _request(self, effect: Infer) -> ChatRequest:
        defaults = self._defaults
        tools = defaults.tools if effect.tools != "none" else ()
        tool_choice = defaults.tool_choice if effect.tools == "offered" else "none"
        return replace(
            defaults,
            model=effect.model or defaults.model,
            messages=effect.messages,
            tools=tools,
            tool_choice=tool_choice if tools else None,
            temperature=defaults.temperature if effect.temperature is None else effect.temperature,
            max_tokens=defaults.max_tokens if effect.max_tokens is None else effect.max_tokens,
            stop=effect.stop or defaults.stop,
        )
