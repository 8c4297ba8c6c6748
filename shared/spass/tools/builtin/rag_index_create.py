"""The tool ``rag_index_create``."""

from collections.abc import Mapping

from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound
from spass.core.messages import Json
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import check_limits
from spass.tools.base import Rag
from spass.tools.consent import Consent, WriteResult
from spass.tools.two_step import DocumentsTool


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
        if_match = self.if_match(rag, state)
        return await rag.writer.replace(scope, self.index, self.documents, consent, if_match)
