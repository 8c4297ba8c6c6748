"""The tool ``rag_doc_append``."""

from collections.abc import Mapping

from spass.calls.scope import Scope
from spass.core.messages import Json
from spass.rag.index.documents import check_limits
from spass.rag.index.precondition import ExistingIds, View
from spass.tools.base import Rag
from spass.tools.consent import Consent, WriteResult
from spass.tools.two_step import DocumentsTool


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
        return ExistingIds([document.document_id for document in self.documents])

    async def preview(self, scope: Scope, rag: Rag, /) -> Mapping[str, Json]:
        check_limits(self.documents)
        await rag.embedder.check_may_embed(scope)
        ids = [document.document_id for document in self.documents]
        existing = await rag.reader.existing_ids(scope, self.index, ids)
        return {"index_id": self.index_id, "shape_summary": self.shape, "conflicting_existing_ids": [*existing]}

    async def execute(self, consent: Consent, state: str, scope: Scope, rag: Rag, /) -> WriteResult:
        if_match = self.if_match(rag, state)
        return await rag.writer.append(scope, self.index, self.documents, consent, if_match)
