"""What performs model calls: the pipeline of the gateway, or the calls of a process without one."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import Protocol

from spass.calls.scope import Scope
from spass.limits.shard import Reservation
from spass.models.types import ChatDelta, ChatRequest
from spass.redaction.redactor import Redactor


class ModelCalls(Protocol):
    """The model calls of any scope. ``pipeline.Calls`` describes the methods."""

    @property
    def redactor(self) -> Redactor: ...

    @property
    def usd_to_eur(self) -> Decimal: ...

    def chat(self, scope: Scope, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]: ...

    def begins_thinking(self, model: str) -> bool: ...

    def model_round_trip(self, text: str) -> str: ...

    def admit_foreign_agent(self, scope: Scope, prompt: str) -> AbstractAsyncContextManager[Reservation | None]: ...
