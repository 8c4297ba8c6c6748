"""Add the tenant's system prompt and memory to a chat, and choose which augmentations a caller wants."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spass.calls.text_cleaning import strip_invisible
from spass.core.confusables import TagSanitizer
from spass.core.messages import Message, Role

if TYPE_CHECKING:
    from spass.models.types import ChatRequest
    from spass.tenancy.stored_settings import ConfigValues

_TAGS: Final = TagSanitizer("memory")


@dataclass(frozen=True, slots=True)
class Augment:
    """The augmentations that a caller wants: by default all that the tenant has."""

    server_tools: bool = True
    system_prompt: bool = True
    memory: bool = True


ALL_AUGMENTATIONS: Final = Augment()


def add_tenant_messages(request: "ChatRequest", settings: "ConfigValues", augment: Augment) -> "ChatRequest":
    """Return ``request`` with the tenant's system prompt as its first message, and the tenant's memory after its leading system
    messages. Text without a visible character adds no message.

    The system prompt is an instruction of the operator. The memory is data, because a note may come from an untrusted text.
    """
    messages = [*request.messages]
    if augment.memory and (notes := strip_invisible(settings.memory or "").strip()):
        first = next((index for index, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
        messages.insert(first, Message(Role.USER, render_memory(notes), data=True))
    if augment.system_prompt and (prompt := strip_invisible(settings.system_prompt or "").strip()):
        messages.insert(0, Message(Role.SYSTEM, prompt))
    return replace(request, messages=tuple(messages))


def render_memory(notes: str) -> str:
    """Return ``notes`` as one block for a model. A note cannot close the block: the ``<`` of a similar tag becomes ``&lt;``."""
    return (
        f"Notes that were kept from earlier conversations, one in a line:\n<memory>\n{_TAGS.sanitize(notes, '&lt;')}\n</memory>"
    )
