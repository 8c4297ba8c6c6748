"""Tools in two steps: the first call returns a preview, the same call with its token makes the change."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, FailFast, Field
from pydantic.json_schema import SkipJsonSchema

from spass.calls.scope import Scope
from spass.core.ids import DocumentId, IndexId
from spass.core.messages import Json
from spass.rag.index.documents import MAX_DOCUMENTS, NewDocument
from spass.rag.index.precondition import IfMatch, IndexChanged, OneDocument, View, WholeIndex
from spass.tools.base import DocumentIdField, IndexIdField, Tool, ToolContext, ToolReply
from spass.tools.confirm_tokens import (
    CONFIRM_SECONDS,
    ConfirmedOperation,
    ConfirmTokens,
    UnsignedToken,
    strip_tag,
    token_expiry,
)
from spass.tools.consent import Consent, WriteResult, to_result

if TYPE_CHECKING:  # only a gated call needs it
    from spass.approvals.ending import Ending


def _move_token_last(schema: dict[str, Any]) -> None:
    """Move the token to the end of the schema: models write arguments in the order of the schema."""
    schema["properties"]["confirm_token"] = schema["properties"].pop("confirm_token")


class TwoStepTool(Tool):
    """A tool in two steps. A subclass implements ``preview`` and ``execute``. The token is bound to all fields of the call and to
    the ``state`` that the preview shows."""

    model_config = ConfigDict(json_schema_extra=_move_token_last)

    timeout: ClassVar[float] = 240.0

    confirm_token: Annotated[
        str | SkipJsonSchema[None],
        Field(
            description="Left out in the first call, which changes nothing and returns a token; in the second that token, beside "
            f"the very same arguments, within {CONFIRM_SECONDS} seconds."
        ),
    ] = None

    async def preview(self, context: ToolContext, /) -> Mapping[str, Json]:
        """Return what the call would change, so that a model or a person can decide.

        Raises:
            SpassError: the errors of ``execute`` that are known now.
        """
        raise NotImplementedError

    async def whole_preview(self, context: ToolContext, /) -> Mapping[str, Json]:
        """Return the preview for a person who decides: what the call takes away is in it, and not cut. What it adds is in the
        arguments."""
        return await self.preview(context)

    async def execute(self, context: ToolContext, consent: Consent, state: str, /) -> WriteResult:
        """Make the change and use up the consent in one transaction.

        Raises:
            IndexChanged: ``state`` is out of date.
        """
        raise NotImplementedError

    async def state(self, _: ToolContext, /) -> str:
        """Return the entity tag of what the preview shows; empty if changes do not matter."""
        return ""

    async def run(self, context: ToolContext, /) -> "Json | ToolReply":
        if self.tool_name in context.grants.approval:
            return await self._request_approval(context)
        if self.confirm_token is None:
            return await self._preview_step(context)
        redemption = await context.confirm_tokens.redeem(context.scope, self.operation(), self.confirm_token)
        return await self._execute_with(context, replace(redemption, record_result=context.record_result))

    async def run_approved(self, context: ToolContext, effect: Mapping[str, Json], ending: "Ending", /) -> Json:
        from spass.tools.gate import ApprovalConsent

        return await self._execute_with(context, ApprovalConsent(ending, str(effect["state"])))

    async def _request_approval(self, context: ToolContext) -> ToolReply:
        """Store the call until a person decides."""
        from spass.approvals.record import StoredCall
        from spass.tools.gate import check_can_wait, request_approval
        from spass.tools.previews import preview_call

        check_can_wait(context.scope)
        state = await self.state(context)  # before the preview, as below
        preview = await self.whole_preview(context)
        arguments = self.model_dump(mode="json", exclude={"confirm_token"}, exclude_unset=True)
        call = StoredCall(arguments, {"state": state})
        return await request_approval(context, self.tool_name, call, preview_call(preview))

    async def _preview_step(self, context: ToolContext) -> Json:
        state = await self.state(context)  # before the preview: a change in between invalidates the token
        preview = await self.preview(context)
        return {
            "confirm_required": True,
            "confirm_token": await context.confirm_tokens.issue(context.scope, self.operation(), state),
            "expires_in_seconds": CONFIRM_SECONDS,
            "op": self.tool_name,
            "preview": dict(preview),
            "message": f"Nothing has been changed yet. {self.tool_name} is carried out only if you call it again within "
            f"{CONFIRM_SECONDS} seconds with exactly the same arguments and this confirm_token. Do so only if the preview shows "
            "what was asked for; otherwise say what would happen, and ask.",
        }

    async def _execute_with(self, context: ToolContext, consent: Consent) -> Json:
        """Make the change if the data still is as the preview of the consent showed it."""
        try:
            state = await self.state(context)
            if not consent.allows(state):  # before anything is embedded; ``execute`` checks it again
                raise IndexChanged
            return to_result(await self.execute(context, consent, state))
        except IndexChanged:
            raise await consent.outdated(context.scope) from None

    def to_record(self, preview: Mapping[str, Json]) -> tuple[Mapping[str, Json], int]:
        """Return the first call's answer for storage, and the last second in which its token is valid. The stored token has no
        tag, so that a reader of the table cannot use it."""
        token = str(preview["confirm_token"])
        return {**preview, "confirm_token": strip_tag(token)}, token_expiry(token)

    async def restore_preview(
        self, scope: Scope, confirm_tokens: ConfirmTokens, record: Mapping[str, Json]
    ) -> Mapping[str, Json]:
        """Return the first call's answer from its stored ``record``."""
        token = await confirm_tokens.sign(scope, self.operation(), UnsignedToken(str(record["confirm_token"])))
        return {**record, "confirm_token": token}

    def operation(self) -> ConfirmedOperation:
        """Return what the token confirms."""
        return ConfirmedOperation(self.tool_name, self.model_dump(mode="json", exclude={"confirm_token"}))


class IndexTool(TwoStepTool):
    """A two-step tool that changes an index."""

    index_id: IndexIdField

    @property
    def index(self) -> IndexId:
        return IndexId(self.index_id)

    @property
    def view(self) -> View:
        """Return the part of the index that the preview shows and that must not change before the execution."""
        return WholeIndex()

    async def state(self, context: ToolContext, /) -> str:
        return await context.rag.reader.entity_tag(context.scope, self.index, self.view)

    def if_match(self, context: ToolContext, state: str) -> IfMatch:
        """Return the precondition of the write: the view is still in ``state``."""
        return context.rag.reader.if_match(self.view, state)


class DocumentTool(IndexTool):
    """A two-step tool that changes one document."""

    doc_id: DocumentIdField

    @property
    def document(self) -> DocumentId:
        return DocumentId(self.doc_id)

    @property
    def view(self) -> View:
        return OneDocument(self.document)


class DocumentsTool(IndexTool):
    """A two-step tool that adds documents."""

    documents: Annotated[
        list[NewDocument],
        Field(
            min_length=1,
            description="The documents: each an id, a text, and metadata if there are any.",
            json_schema_extra={"maxItems": MAX_DOCUMENTS},
        ),
        FailFast(),
    ]

    @property
    def shape(self) -> dict[str, Json]:
        """Return the number of documents and the bytes of their texts."""
        sizes = [len(document.text.encode()) for document in self.documents]
        return {"doc_count": len(sizes), "total_bytes": sum(sizes)}
