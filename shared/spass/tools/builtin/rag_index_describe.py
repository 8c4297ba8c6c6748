"""The tool ``rag_index_describe``."""

from spass.calls.scope import Scope
from spass.core.ids import IndexId
from spass.core.messages import Json
from spass.rag.index.catalog import describe_index
from spass.tools.base import IndexIdField, KnowledgeTool, Rag


class RagIndexDescribe(KnowledgeTool):
    """Describes one knowledge index: how many documents and bytes of text it holds, the model its texts were embedded with, its
    version, which grows by one with every change, and when it was created and last changed.

    Example: {"index_id": "berlin-info"} returns {"id": "berlin-info", "doc_count": 42, "total_text_bytes": 18372,
    "embedding_model": "all-minilm-l6-v2", "dimensions": 384, "version": 7, "created_at": "2026-04-30T08:14:22.123Z",
    "updated_at": "2026-05-02T10:00:01.456Z"}.
    """

    index_id: IndexIdField

    async def run(self, scope: Scope, _rag: Rag, /) -> Json:
        return (await describe_index(scope, IndexId(self.index_id))).to_dict()
