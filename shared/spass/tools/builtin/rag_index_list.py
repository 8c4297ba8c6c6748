"""The tool ``rag_index_list``."""

from typing import Final

from spass.calls.scope import Scope
from spass.core.messages import Json
from spass.rag.index.catalog import read_indices
from spass.tools.base import KnowledgeTool, Rag

_MAX_INDEXES: Final = 100


class RagIndexList(KnowledgeTool):
    """Lists the knowledge indices: the id of each, how many documents and bytes of text it holds, the model its texts were
    embedded with, its version, and when it was created and last changed.

    Use it to find out what indices there are before you search, read or change one. At most 100 are listed, in the order of
    their ids; "more" says whether there are others.
    Example: {} returns {"indices": [{"id": "berlin-info", "doc_count": 42, "total_text_bytes": 18372, ...}], "more": false}.
    """

    async def run(self, scope: Scope, _rag: Rag, /) -> Json:
        page = await read_indices(scope, None, _MAX_INDEXES)
        return {"indices": [index.to_dict() for index in page.indices], "more": page.next_cursor is not None}
