"""How retrieved text enters a prompt: each document between tags of its own. That it is data, the input defence says."""

from collections.abc import Sequence
from typing import Final

from spass.calls.invisible_characters import strip_invisible
from spass.core.confusables import TagSanitizer
from spass.core.ids import IndexId
from spass.rag.index.answers import Hit

_TAGS: Final = TagSanitizer("document", "documents", "retrieved")


def render_context(hits: Sequence[Hit], index_id: IndexId) -> str:
    """``hits`` as one block for a model, best first; empty without hits.

    A document's text cannot end the block or begin another document: where it holds such a tag, the tag's bracket is written
    ``&lt;``.
    """
    if not hits:
        return ""
    documents = "\n".join(f'<document id="{hit.id}">\n{_escape_tags(hit.text)}\n</document>' for hit in hits)
    return f'<retrieved index="{index_id}" for="the message that follows">\n{documents}\n</retrieved>'


def _escape_tags(text: str) -> str:
    # A character that the defence takes out later could hide a tag until then.
    return _TAGS.sanitize(strip_invisible(text), "&lt;")
