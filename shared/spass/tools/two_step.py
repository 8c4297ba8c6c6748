"""Tools in two steps: the first call returns a preview, the same call with its token makes the change."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from spass.core.messages import Json
from spass.tools.base import Tool
from spass.tools.confirm_tokens import CONFIRM_SECONDS, ConfirmedOperation, WriteResult


def _move_token_last(schema: dict[str, Any]) -> None:
    """Move the token to the end of the schema: models write arguments in the order of the schema."""
    schema["properties"]["confirm_token"] = schema["properties"].pop("confirm_token")


async def _preview_whole(tool: "TwoStepTool", *arguments: object) -> Mapping[str, Json]:
    return await tool.preview(*arguments)


class TwoStepTool(Tool):
    """A tool in two steps, which ``TurnTools`` takes. A subclass implements ``preview`` and ``execute``. The token is bound
    to all fields of the call and to the ``state`` that the preview shows."""

    model_config = ConfigDict(json_schema_extra=_move_token_last)

    timeout: ClassVar[float] = 240.0

    confirm_token: Annotated[
        str | SkipJsonSchema[None],
        Field(
            description="Left out in the first call, which changes nothing and returns a token; in the second that token, beside "
            f"the very same arguments, within {CONFIRM_SECONDS} seconds."
        ),
    ] = None

    if TYPE_CHECKING:  # pydantic would evaluate these types
        preview: ClassVar[Callable[..., Awaitable[Mapping[str, Json]]]]
        """``async def preview(self, scope, *needs)`` returns what the call would change, so that a model or a person can decide.

        Raises:
            SpassError: the errors of ``execute`` that are known now.
        """
        whole_preview: ClassVar[Callable[..., Awaitable[Mapping[str, Json]]]]
        """``async def whole_preview(self, scope, *needs)`` returns the preview for a person who decides: what the call takes away
        is in it, and not cut. What it adds is in the arguments."""
        execute: ClassVar[Callable[..., Awaitable[WriteResult]]]
        """``async def execute(self, consent, state, scope, *needs)`` makes the change and uses up the consent in one transaction.

        Raises:
            IndexChanged: ``state`` is out of date.
        """
        state: ClassVar[Callable[..., Awaitable[str]]]
        """``async def state(self, scope, *needs)`` returns the entity tag of what the preview shows; empty if it is constant."""
    else:
        whole_preview = _preview_whole

    def operation(self) -> ConfirmedOperation:
        """Return what the token confirms."""
        return ConfirmedOperation(self.tool_name, self.model_dump(mode="json", exclude={"confirm_token"}))
