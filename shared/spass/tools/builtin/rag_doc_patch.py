"""The tool ``rag_doc_patch``."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator
from pydantic.json_schema import SkipJsonSchema

from spass.calls.scope import Scope
from spass.core.json import dump_canonical
from spass.core.messages import Json
from spass.rag.index.documents import DocumentPatch, Text, check_patch
from spass.tools.base import Rag
from spass.tools.consent import Consent, WriteResult
from spass.tools.two_step import DocumentTool


class RagDocPatch(DocumentTool):
    """Changes one document of a knowledge index: its text, its metadata, or both. What you leave out stays as it is. New
    metadata replaces all metadata of the document.

    Works in two steps. The first call changes nothing: it returns a preview, with the fields that would change and the size
    of the text afterwards, and a confirm_token. The same call with that token within 60 seconds does it, and returns the
    document. A text has at most 8192 bytes.
    Example: {"index_id": "berlin-info", "doc_id": "gate", "metadata": {"category": "sights", "checked": true}}.
    """

    text: Annotated[Text | SkipJsonSchema[None], Field(description="The new text.")] = None
    metadata: Annotated[
        dict[str, JsonValue] | SkipJsonSchema[None], Field(description="All of the new metadata: any JSON object.")
    ] = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.text is None and self.metadata is None:
            raise ValueError("give text, metadata or both")
        return self

    @property
    def patch(self) -> DocumentPatch:
        fields = {"text": self.text, "metadata": self.metadata}
        return DocumentPatch.model_validate({name: value for name, value in fields.items() if value is not None})

    async def preview(self, scope: Scope, rag: Rag, /) -> Mapping[str, Json]:
        patch = self.patch
        check_patch(patch)
        stored = await rag.reader.document(scope, self.index, self.document)
        text, metadata = patch.text_after(stored.text), patch.metadata_after(dict(stored.metadata))
        changed_fields: list[Json] = []
        if text != stored.text:
            await rag.embedder.check_may_embed(scope)
            await rag.reader.existing_ids(
                scope, self.index, [self.document]
            )  # raises the errors that would prevent the embedding
            changed_fields.append("text")
        if dump_canonical(metadata) != dump_canonical(dict(stored.metadata)):
            changed_fields.append("metadata")
        return {
            "index_id": self.index_id,
            "doc_id": self.doc_id,
            "changed_fields": changed_fields,
            "new_text_size_bytes": len(text.encode()),
        }

    async def whole_preview(self, scope: Scope, rag: Rag, /) -> Mapping[str, Json]:
        preview, patch = await self.preview(scope, rag), self.patch
        stored = await rag.reader.document(scope, self.index, self.document)
        sides: dict[str, tuple[Json, Json]] = {
            "text": (stored.text, patch.text_after(stored.text)),
            "metadata": (dict(stored.metadata), patch.metadata_after(dict(stored.metadata))),
        }
        changed = {name: (old, new) for name, (old, new) in sides.items() if dump_canonical(old) != dump_canonical(new)}
        old, new = ({f"{prefix}_{name}": both[at] for name, both in changed.items()} for at, prefix in enumerate(("old", "new")))
        return {**preview, **old, **new}

    async def execute(self, consent: Consent, state: str, scope: Scope, rag: Rag, /) -> WriteResult:
        if_match = self.if_match(rag, state)
        return await rag.writer.patch(scope, self.index, self.document, self.patch, consent, if_match)
