"""The tools that change knowledge indices, each in two steps."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Self

from pydantic import FailFast, Field, JsonValue, model_validator
from pydantic.json_schema import SkipJsonSchema

from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound
from spass.core.ids import DocumentId, IndexId
from spass.core.json import dump_canonical
from spass.core.messages import Json
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import MAX_DOCUMENTS, MAX_TEXT_BYTES, DocumentPatch, NewDocument, Text, check_limits, check_sizes
from spass.rag.index.precondition import IfMatch, View, existing_ids, one_document, whole_index
from spass.tools.base import Rag
from spass.tools.builtin.knowledge import DocumentIdField, IndexIdField
from spass.tools.confirm_tokens import Consent, WriteResult
from spass.tools.turn_tools import TwoStepTool


class IndexTool(TwoStepTool):
    """A two-step tool that changes an index."""

    category: ClassVar[str] = "knowledge"

    index_id: IndexIdField

    @property
    def index(self) -> IndexId:
        return IndexId(self.index_id)

    @property
    def view(self) -> View:
        """Return the part of the index that the preview shows and that must not change before the execution."""
        return whole_index

    async def state(self, scope: Scope, rag: Rag, /) -> str:
        return await rag.reader.entity_tag(scope, self.index, self.view)

    def if_match(self, rag: Rag, state: str) -> IfMatch:
        """Return the precondition of the write: the view is still in ``state``."""
        return rag.reader.if_match(self.view, state)


class DocumentTool(IndexTool):
    """A two-step tool that changes one document."""

    doc_id: DocumentIdField

    @property
    def document(self) -> DocumentId:
        return DocumentId(self.doc_id)

    @property
    def view(self) -> View:
        return one_document(self.document)


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


class RagIndexCreate(DocumentsTool):
    """Creates a knowledge index from documents. If there is an index with this id, everything in it is deleted and the new
    documents take its place; to add to an index, use rag_doc_append instead.

    Works in two steps. The first call changes nothing: it returns a preview, which says what an existing index would lose,
    and a confirm_token. The same call with that token within 60 seconds does it, and returns {"index_id", "doc_count",
    "ingested", "replaced", "version"}. At most 256 documents of at most 8192 bytes of text each.
    Example: {"index_id": "berlin-info", "documents": [{"id": "gate", "text": "The Brandenburg Gate was built in 1791.",
    "metadata": {"category": "sights"}}]}.
    """

    async def preview(self, scope: Scope, rag: Rag, /) -> Mapping[str, Json]:
        check_limits(self.documents)
        await rag.embedder.check_may_embed(scope)
        try:
            count = (await describe_index(scope, self.index)).doc_count
        except IndexNotFound:
            semantics = "A new index is created: there is none with this id."
        else:
            semantics = f"The index exists. All of its {count} documents are deleted, and these take their place."
        return {"index_id": self.index_id, "shape_summary": {**self.shape, "replace_semantics": semantics}}

    async def execute(self, consent: Consent, state: str, scope: Scope, rag: Rag, /) -> WriteResult:
        return await rag.writer.replace(scope, self.index, self.documents, consent, self.if_match(rag, state))


class RagDocAppend(DocumentsTool):
    """Adds documents to a knowledge index. A document whose id is there already takes the place of the old one; all others stay.
    If there is no such index, it is created.

    Works in two steps. The first call changes nothing: it returns a preview, with the ids that are there already in
    conflicting_existing_ids, and a confirm_token. The same call with that token within 60 seconds does it, and returns
    {"index_id", "doc_count", "ingested", "replaced", "version"}. At most 256 documents of at most 8192 bytes of text each.
    Example: {"index_id": "berlin-info", "documents": [{"id": "tower", "text": "The television tower is 368 metres high."}]}.
    """

    @property
    def view(self) -> View:
        return existing_ids([document.document_id for document in self.documents])

    async def preview(self, scope: Scope, rag: Rag, /) -> Mapping[str, Json]:
        check_limits(self.documents)
        await rag.embedder.check_may_embed(scope)
        ids = [document.document_id for document in self.documents]
        existing = await rag.reader.existing_ids(scope, self.index, ids)
        return {"index_id": self.index_id, "shape_summary": self.shape, "conflicting_existing_ids": [*existing]}

    async def execute(self, consent: Consent, state: str, scope: Scope, rag: Rag, /) -> WriteResult:
        return await rag.writer.append(scope, self.index, self.documents, consent, self.if_match(rag, state))


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
        check_sizes(patch.text, patch.metadata)
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
        return await rag.writer.patch(scope, self.index, self.document, self.patch, consent, self.if_match(rag, state))


_EXCERPT_CHARACTERS: Final = 200


class RagDocDelete(DocumentTool):
    """Deletes one document of a knowledge index for good. To change a document, use rag_doc_patch instead.

    Works in two steps. The first call changes nothing: it returns a preview, with the beginning of the document that would be
    lost, and a confirm_token. The same call with that token within 60 seconds does it, and returns {"deleted": true}. If the
    document has changed by then, nothing is deleted and you get an error: make the first call again.
    Example: {"index_id": "berlin-info", "doc_id": "gate"}.
    """

    async def preview(self, scope: Scope, rag: Rag, /) -> Mapping[str, Json]:
        return await self._preview(scope, rag, _EXCERPT_CHARACTERS)

    async def whole_preview(self, scope: Scope, rag: Rag, /) -> Mapping[str, Json]:
        return await self._preview(scope, rag, MAX_TEXT_BYTES)

    async def _preview(self, scope: Scope, rag: Rag, characters: int) -> Mapping[str, Json]:
        stored = await rag.reader.document(scope, self.index, self.document)
        return {
            "index_id": self.index_id,
            "doc_id": self.doc_id,
            "text_size_bytes": len(stored.text.encode()),
            "text_excerpt": stored.text[:characters],
            "text_excerpt_truncated": len(stored.text) > characters,
            "metadata": dict(stored.metadata),
        }

    async def execute(self, consent: Consent, state: str, scope: Scope, rag: Rag, /) -> WriteResult:
        return await rag.deleter.delete_document(scope, self.index, self.document, consent, self.if_match(rag, state))


_SAMPLE_DOCUMENTS: Final = 10


class RagIndexDelete(IndexTool):
    """Deletes a whole knowledge index with all of its documents for good. To delete one document, use rag_doc_delete instead.

    Works in two steps. The first call changes nothing: it returns a preview, with what would be lost and the first ids of the
    documents, and a confirm_token. The same call with that token within 60 seconds does it, and returns {"deleted": true}. If
    anything in the index has changed by then, nothing is deleted and you get an error: make the first call again.
    Example: {"index_id": "berlin-info"}.
    """

    async def preview(self, scope: Scope, rag: Rag, /) -> Mapping[str, Json]:
        index = await describe_index(scope, self.index)
        page = await rag.reader.documents(scope, self.index, None, _SAMPLE_DOCUMENTS)
        return {
            "index_id": self.index_id,
            "doc_count": index.doc_count,
            "total_text_bytes": index.total_text_bytes,
            "embedding_model": index.embedding_model,
            "created_at": index.created_at,
            "sample_doc_ids": [document.id for document in page.documents],
            "sample_truncated_at": _SAMPLE_DOCUMENTS,
        }

    async def execute(self, consent: Consent, state: str, scope: Scope, rag: Rag, /) -> WriteResult:
        return await rag.deleter.delete_index(scope, self.index, consent, self.if_match(rag, state))
