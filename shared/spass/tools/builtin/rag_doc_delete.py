"""The tool ``rag_doc_delete``."""

from collections.abc import Mapping
from typing import Final

from spass.calls.scope import Scope
from spass.core.messages import Json
from spass.rag.index.documents import MAX_TEXT_BYTES
from spass.tools.base import Rag
from spass.tools.consent import Consent, WriteResult
from spass.tools.two_step import DocumentTool

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
        if_match = self.if_match(rag, state)
        return await rag.deleter.delete_document(scope, self.index, self.document, consent, if_match)
