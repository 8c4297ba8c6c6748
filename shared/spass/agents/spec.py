"""One agent as its YAML file describes it, and the bodies that talk to an agent."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from spass.agents.kinds.registry import KINDS
from spass.core.messages import Json

MAX_MESSAGE_BYTES: Final = 256 * 1024


def _existing_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"there is no agent kind '{kind}' in this version; write {' or '.join(KINDS)}")
    return kind


def _each_once(tools: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(tools)) < len(tools):
        raise ValueError("a tool stands here twice; name each once")
    return tools


class AgentSpec(BaseModel):
    """An agent: a model, what it is told, and what it may use. ``rag_index`` is searched before each prompt."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]
    kind: Annotated[str, AfterValidator(_existing_kind)] = "orchestrator"
    model: Annotated[str, Field(min_length=1)]
    description: str = ""
    system_prompt: str = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_turns: Annotated[int, Field(ge=1, le=100)] = 10
    tools: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_each_once)] = ()
    rag_index: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")] | None = None
    rag_top_k: Annotated[int, Field(ge=1, le=50)] = 5

    @property
    def listing(self) -> Mapping[str, Json]:
        """The agent as the list of agents shows it."""
        return self.model_dump(include={"name", "description", "model", "kind", "tools", "rag_index"}, mode="json")

    @property
    def config(self) -> Mapping[str, Json]:
        """The whole file, defaults filled in."""
        return self.model_dump(mode="json")


def _sayable(text: str) -> str:
    """A message a model can be sent and a table can keep."""
    if not text.strip():
        raise _refused("the message must not be empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _refused("the message must be valid Unicode: it holds half a surrogate pair") from None
    if size > MAX_MESSAGE_BYTES:
        raise _refused(f"the message must be at most {MAX_MESSAGE_BYTES} bytes of UTF-8; it has {size}")
    if "\0" in text:
        raise _refused("the message must not hold the character NUL")
    return text


def _refused(reason: str) -> PydanticCustomError:
    return PydanticCustomError("message_refused", "{reason}", {"reason": reason})


class MessageBody(BaseModel):
    """The body of a chat and of a session's turn."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    message: Annotated[str, AfterValidator(_sayable)]


ChatBody = MessageBody
