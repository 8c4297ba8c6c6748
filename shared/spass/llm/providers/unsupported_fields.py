"""What a request may ask for that not every provider has.

A provider names the fields that it lacks. Who asks for one is told so before anything is sent, so that another backend that has
it may answer; nothing is dropped in silence. A value that asks for what happens anyway (a penalty of 0) is no such wish.

Not among them, and left out where a provider does not know them, because no answer means anything else without them: ``seed``
(OpenAI itself promises a best effort only), ``user``, a message's ``name`` and a picture's ``detail``.
"""

from collections.abc import Callable, Collection
from typing import Final

from spass.core.messages import Image
from spass.llm.errors import BackendUnsupported
from spass.llm.types import ChatRequest, NamedTool

_EFFORTS: Final = ("low", "medium", "high", "xhigh")


def _may_call(request: ChatRequest) -> bool:
    return bool(request.tools) and request.tool_choice != "none"


def _must_call(request: ChatRequest) -> bool:
    return bool(request.tools) and (request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool))


def _has_image_urls(request: ChatRequest) -> bool:
    parts = (part for message in request.messages for part in message.parts)
    return any(isinstance(part, Image) and not part.url.startswith("data:") for part in parts)


_IS_REQUESTED: Final[dict[str, Callable[[ChatRequest], bool]]] = {
    "presence_penalty": lambda request: bool(request.extra.get("presence_penalty")),
    "frequency_penalty": lambda request: bool(request.extra.get("frequency_penalty")),
    "logit_bias": lambda request: bool(request.extra.get("logit_bias")),
    "verbosity": lambda request: request.extra.get("verbosity") not in (None, "medium"),
    "parallel_tool_calls": lambda request: _may_call(request) and request.extra.get("parallel_tool_calls") is False,
    "tool_choice": _must_call,
}


def reject_unsupported(request: ChatRequest, provider: str, lacks: Collection[str]) -> None:
    """Refuses what ``request`` asks for and ``provider`` has not.

    Raises:
        BackendUnsupported: the first such field.
    """
    for field in sorted(lacks):
        if _IS_REQUESTED[field](request):
            raise BackendUnsupported(
                f"{provider} has no '{field}'; leave it out, or ask a model of another provider.", param=field
            )


def reject_image_urls(request: ChatRequest, provider: str) -> None:
    """Refuses pictures that the provider would have to fetch.

    Raises:
        BackendUnsupported: there is one.
    """
    if _has_image_urls(request):
        raise BackendUnsupported(f"{provider} fetches no pictures; send them as data: URLs.", param="messages")


def reasoning_effort(request: ChatRequest, provider: str) -> str | None:
    """``reasoning_effort`` in the words of Anthropic and Bedrock.

    Raises:
        BackendUnsupported: they have no word for it.
    """
    wanted = request.extra.get("reasoning_effort")
    if wanted is None or wanted in _EFFORTS:
        return None if wanted is None else str(wanted)
    raise BackendUnsupported(
        f"{provider} has no reasoning_effort '{wanted}', only {', '.join(_EFFORTS)}.", param="reasoning_effort"
    )


def clamp_temperature(request: ChatRequest) -> float | None:
    """``temperature`` for a scale that ends at 1, where OpenAI's ends at 2. What is above is the end: as random as there is, and
    as Anthropic's own interface for OpenAI's clients reads it (https://platform.claude.com/docs/en/api/openai-sdk). To refuse it
    would stop an agent whose file says so at every turn, for people who cannot change the file."""
    return None if request.temperature is None else min(request.temperature, 1.0)


def effective_top_p(request: ChatRequest) -> float | None:
    """``top_p``, unless it is 1: that changes nothing, and newer models refuse it beside a temperature."""
    return None if request.top_p == 1 else request.top_p
