"""The tools of one turn, and the consent to their calls in two steps: a confirm token of the caller, or a person's approval."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeGuard

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from spass.calls.scope import Scope
from spass.core.errors import ToolNotFound
from spass.core.json import replace_surrogates
from spass.core.messages import Json, ToolSpec
from spass.rag.index.precondition import IndexChanged
from spass.tools.base import CallResult, Returned, Tool, parse_arguments
from spass.tools.confirm_tokens import (
    CONFIRM_SECONDS,
    ConfirmedOperation,
    ConfirmTokens,
    Consent,
    RecordResult,
    UnsignedToken,
    WriteResult,
    strip_tag,
    to_result,
    token_expiry,
)
from spass.tools.toolset import BoundTool, ReadyCall, Toolset

if TYPE_CHECKING:  # only a gated call needs it
    from spass.approvals.ending import Ending


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


@dataclass(frozen=True, slots=True)
class TurnTools:
    """The tools of all ``toolsets`` of a turn, of which only those in ``offered`` are known, or all. A call in two steps needs
    consent: an approval if its tool is one of ``gates``, else a token.

    ``record_result`` returns the writes that a change includes in its transaction, so that the result is stored with it.
    """

    toolsets: Sequence[Toolset]
    tokens: ConfirmTokens
    offered: Collection[str] | None = None
    gates: Collection[str] = ()
    record_result: RecordResult | None = None

    def specs(self, scope: Scope, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the tools ``names`` as a model sees them, without tools that the caller may not call."""
        return tuple(spec for name in names for spec in self._require(name).specs(scope, [name]))

    def call(self, scope: Scope, name: str, arguments: Mapping[str, Json] | str) -> ReadyCall:
        """Return a call of the tool ``name``. The ``arguments`` may be the text of a model. Raise ToolNotFound, AdminRequired
        or InvalidArguments if there can be no such call."""
        source = self._require(name)
        call = source.call(scope, name, parse_arguments(arguments) if isinstance(arguments, str) else arguments)
        if isinstance(call, BoundTool) and isinstance(call.tool, TwoStepTool):
            return TwoStepCall(call, call.tool, self, call.seconds)
        return call

    def source(self, name: str) -> Toolset | None:
        """Return the toolset of the tool ``name``, or None if the tool is unknown."""
        is_offered = self.offered is None or name in self.offered
        return next((toolset for toolset in self.toolsets if name in toolset.names), None) if is_offered else None

    def _require(self, name: str) -> Toolset:
        source = self.source(name)
        if source is None:
            known = [tool for toolset in self.toolsets for tool in toolset.names] if self.offered is None else self.offered
            excerpt = replace_surrogates(name)[:80]
            raise ToolNotFound(f"There is no tool {excerpt!r}. There are: {', '.join(known) or 'none'}.", param="name")
        return source


@dataclass(frozen=True, slots=True)
class TwoStepCall:
    """A call of a two-step ``tool``."""

    bound: BoundTool
    tool: TwoStepTool
    rules: TurnTools
    seconds: float

    async def run(self, scope: Scope) -> Returned:
        if self.tool.tool_name in self.rules.gates:
            return await self._request_approval(scope)
        if self.tool.confirm_token is None:
            return await self._preview(scope)
        redemption = await self.rules.tokens.redeem(scope, self.tool.operation(), self.tool.confirm_token)
        return await self._execute(scope, replace(redemption, record_result=self.rules.record_result))

    async def run_approved(self, scope: Scope, effect: Mapping[str, Json], ending: "Ending") -> Returned:
        from spass.tools.gate import ApprovalConsent

        return await self._execute(scope, ApprovalConsent(ending, str(effect["state"])))

    async def _request_approval(self, scope: Scope) -> CallResult:
        """Store the call until a person decides."""
        from spass.approvals.record import StoredCall
        from spass.tools.gate import check_can_wait, preview_call, request_approval

        check_can_wait(scope)
        needs = self.bound.open(scope)
        state = await self.tool.state(scope, *needs)  # before the preview, as below
        preview = await self.tool.whole_preview(scope, *needs)
        arguments = self.tool.model_dump(mode="json", exclude={"confirm_token"}, exclude_unset=True)
        return await request_approval(scope, self.tool.tool_name, StoredCall(arguments, {"state": state}), preview_call(preview))

    async def _preview(self, scope: Scope) -> Json:
        needs, name = self.bound.open(scope), self.tool.tool_name
        state = await self.tool.state(scope, *needs)  # before the preview: a change in between invalidates the token
        preview = await self.tool.preview(scope, *needs)
        return {
            "confirm_required": True,
            "confirm_token": await self.rules.tokens.issue(scope, self.tool.operation(), state),
            "expires_in_seconds": CONFIRM_SECONDS,
            "op": name,
            "preview": dict(preview),
            "message": f"Nothing has been changed yet. {name} is carried out only if you call it again within {CONFIRM_SECONDS} "
            "seconds with exactly the same arguments and this confirm_token. Do so only if the preview shows what was asked for; "
            "otherwise say what would happen, and ask.",
        }

    async def _execute(self, scope: Scope, consent: Consent) -> Json:
        """Make the change if the data still is as the preview of the consent showed it."""
        needs = self.bound.open(scope)
        try:
            state = await self.tool.state(scope, *needs)
            if not consent.allows(state):  # before anything is embedded; ``execute`` checks it again
                raise IndexChanged
            return to_result(await self.tool.execute(consent, state, scope, *needs))
        except IndexChanged:
            raise await consent.outdated(scope) from None

    def to_record(self, preview: Mapping[str, Json]) -> tuple[Mapping[str, Json], int]:
        """Return the first call's answer for storage, and the last second in which its token is valid. The stored token has no
        tag, so that a reader of the table cannot use it."""
        token = str(preview["confirm_token"])
        return {**preview, "confirm_token": strip_tag(token)}, token_expiry(token)

    async def restore_preview(self, scope: Scope, record: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the first call's answer from its stored ``record``."""
        token = await self.rules.tokens.sign(scope, self.tool.operation(), UnsignedToken(str(record["confirm_token"])))
        return {**record, "confirm_token": token}


def needs_confirmation(call: ReadyCall) -> TypeGuard[TwoStepCall]:
    """Return whether ``call`` is the first of two steps, whose answer has a confirm token."""
    return isinstance(call, TwoStepCall) and call.tool.confirm_token is None
