"""A driver over a scripted model, to run an agent kind without a gateway."""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from spass.agents.driver import Driver
from spass.agents.performers.code import CodePerformer
from spass.calls.scope import REQUEST_SECONDS, Scope
from spass.core.effects import Infer
from spass.core.errors import InternalError
from spass.core.events import CallEvent
from spass.core.ids import RequestId, TenantId, UserId
from spass.core.messages import ToolCall
from spass.core.time import Deadline
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.sandbox.launchers import select_sandbox
from spass.tenancy.identity import Caller, Identity
from spass.testing.aws import MemoryAws
from spass.testing.model import ScriptedModel

_TENANT: Final = TenantId("demo")


def scripted_driver(model: ScriptedModel) -> Driver:
    """Return a driver whose every model is ``model``. It has no tools. Code runs in the sandbox of this machine, or in the
    container of a ``SandboxedAgent``."""
    identity = Identity(_TENANT, "token", admin=False, allowed_models=("*",))
    caller = Caller(identity, UserId("user"), RequestId("req_scripted"), None, 0, "/a1/agents/{name}/chat")
    scope = Scope.for_request(caller, MemoryAws().for_tenant(_TENANT), seconds=REQUEST_SECONDS)
    infer = _Inference(model)

    def open_code() -> CodePerformer:
        return CodePerformer(scope, lambda _: infer, lambda _, calls: _refuse(calls), (), select_sandbox, str)

    return Driver(infer, _refuse, scope, open_code=open_code)


class _Inference:
    """See ``Inference``."""

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        request = ChatRequest(effect.model or "scripted", tuple(effect.messages))
        return self._model.chat(request, CallContext(Deadline.after(REQUEST_SECONDS)))

    def begins_thinking(self, _effect: Infer) -> bool:
        return False


async def _refuse(calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
    """Refuse to call tools: this driver has none.

    Raises:
        InternalError: always.
    """
    for call in calls:
        raise InternalError(f"This driver has no tool {call.name!r}.")
        yield
