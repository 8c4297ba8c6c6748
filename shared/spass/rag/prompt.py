"""How retrieved text enters a prompt: each document between tags of its own. That it is data, the input defence says."""

from collections.abc import Sequence
from typing import Final

from spass.calls.invisible import visible
from spass.core.ids import IndexId
from spass.core.lookalikes import Tags
from spass.rag.answers import Hit

_TAGS: Final = Tags("document", "documents", "retrieved")


def render_context(hits: Sequence[Hit], index_id: IndexId) -> str:
    """``hits`` as one block for a model, best first; empty without hits.

    A document's text cannot end the block or begin another document: where it holds such a tag, the tag's bracket is written
    ``&lt;``.
    """
    if not hits:
        return ""
    documents = "\n".join(f'<document id="{hit.id}">\n{_harmless(hit.text)}\n</document>' for hit in hits)
    return f'<retrieved index="{index_id}" for="the message that follows">\n{documents}\n</retrieved>'


def _harmless(text: str) -> str:
    # A character that the defence takes out later could hide a tag until then.
    return _TAGS.disarm(visible(text), "&lt;")
