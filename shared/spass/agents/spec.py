"""An agent as its YAML file describes it, and the body of a message to an agent."""

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from spass.core.ids import RAG_ID
from spass.core.text_checks import limit_bytes, reject_blank
from spass.llm.types import MAX_OUTPUT_TOKENS
from spass.tenancy.scalars import TopK
from spass.tenancy.strict_body import StrictBody

MAX_MESSAGE_BYTES: Final = 256 * 1024


def _check_kind(kind: str) -> str:
    if kind != "orchestrator":
        raise ValueError(f"'{kind}' is not an agent kind of this version; write orchestrator")
    return kind


def _check_unique(tools: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(tools)) < len(tools):
        raise ValueError("a tool is listed twice; list each tool once")
    return tools


class AgentSpec(BaseModel):
    """An agent: its model, its system prompt and its tools. ``rag_index`` is searched before each prompt for ``rag_top_k``
    passages; None means the tenant's setting."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]
    kind: Annotated[str, AfterValidator(_check_kind)] = "orchestrator"
    model: Annotated[str, Field(min_length=1)]
    description: str = ""
    system_prompt: str = ""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_turns: Annotated[int, Field(ge=1, le=100)] = 10
    tools: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_check_unique)] = ()
    rag_index: Annotated[str, Field(pattern=RAG_ID)] | None = None
    rag_top_k: TopK | None = None


class MessageBody(StrictBody):
    """The body of a chat and of a session's turn."""

    message: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_MESSAGE_BYTES,
            description=f"At most {MAX_MESSAGE_BYTES} bytes of UTF-8.",
            json_schema_extra={"pattern": r"\S"},
        ),
        AfterValidator(reject_blank),
        AfterValidator(limit_bytes(MAX_MESSAGE_BYTES)),
    ]
