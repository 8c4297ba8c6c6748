"""Reject requests for fields that a provider does not support.

Such a request fails before it is sent, so that another backend may answer it. A value that equals the default (a penalty of 0)
is accepted. Providers omit ``seed`` (best effort at OpenAI too), ``user``, a message's ``name`` and a picture's ``detail`` if
they do not support them, because the answer means the same without them.
"""

from collections.abc import Callable, Collection
from typing import Final

from spass.core.messages import Image
from spass.models.errors import BackendUnsupported
from spass.models.types import ChatRequest

_EFFORTS: Final = ("low", "medium", "high", "xhigh")


def _has_tools(request: ChatRequest) -> bool:
    return bool(request.tools) and request.tool_choice != "none"


_IS_REQUESTED: Final[dict[str, Callable[[ChatRequest], bool]]] = {
    "presence_penalty": lambda request: bool(request.extra.get("presence_penalty")),
    "frequency_penalty": lambda request: bool(request.extra.get("frequency_penalty")),
    "logit_bias": lambda request: bool(request.extra.get("logit_bias")),
    "verbosity": lambda request: request.extra.get("verbosity") not in (None, "medium"),
    "parallel_tool_calls": lambda request: _has_tools(request) and request.extra.get("parallel_tool_calls") is False,
    "tool_choice": lambda request: _has_tools(request) and request.tool_choice not in (None, "auto"),
}


def reject_unsupported(request: ChatRequest, provider: str, lacks: Collection[str]) -> None:
    """Raise ``BackendUnsupported`` if ``request`` uses a field that ``provider`` lacks. The error names the first one."""
    for field in sorted(lacks):
        if _IS_REQUESTED[field](request):
            raise BackendUnsupported(
                f"{provider} does not support '{field}'. Leave it out, or use a model of another provider.", param=field
            )


def reject_image_urls(request: ChatRequest, provider: str) -> None:
    """Raise ``BackendUnsupported`` if ``request`` has a picture that the provider would have to fetch."""
    parts = (part for message in request.messages for part in message.parts)
    if any(isinstance(part, Image) and not part.url.startswith("data:") for part in parts):
        raise BackendUnsupported(f"{provider} does not fetch pictures. Send them as data: URLs.", param="messages")


def reasoning_effort(request: ChatRequest, provider: str, levels: Collection[str] = _EFFORTS) -> str | None:
    """Return ``reasoning_effort``, or raise ``BackendUnsupported`` if it is not in ``levels`` (by default Anthropic's and
    Bedrock's)."""
    effort = request.extra.get("reasoning_effort")
    if effort is None:
        return None
    if effort in levels:
        return str(effort)
    raise BackendUnsupported(
        f"{provider} does not support reasoning_effort '{effort}'. Use one of: {', '.join(levels)}.", param="reasoning_effort"
    )


def clamp_temperature(request: ChatRequest) -> float | None:
    """Return ``temperature``, limited to 1, the provider's maximum (OpenAI's is 2), as Anthropic's own endpoint for OpenAI's
    clients does (https://platform.claude.com/docs/en/api/openai-sdk). Users cannot change the file of an agent that sets more."""
    return None if request.temperature is None else min(request.temperature, 1.0)


def effective_top_p(request: ChatRequest) -> float | None:
    """Return ``top_p``, or None if it is 1: 1 has no effect, and newer models refuse it together with a temperature."""
    return None if request.top_p == 1 else request.top_p
