"""The tool ``rag_index_delete``."""

from collections.abc import Mapping
from typing import Final

from spass.calls.scope import Scope
from spass.core.messages import Json
from spass.rag.index.catalog import describe_index
from spass.tools.base import Rag
from spass.tools.consent import Consent, WriteResult
from spass.tools.two_step import IndexTool

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
        if_match = self.if_match(rag, state)
        return await rag.deleter.delete_index(scope, self.index, consent, if_match)
