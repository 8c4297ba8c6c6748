"""Render retrieved documents for a prompt, each between tags of its own. The input defence tells the model that they are data."""

from collections.abc import Sequence
from typing import Final

from spass.calls.text_cleaning import strip_invisible
from spass.core.confusables import TagSanitizer
from spass.core.ids import IndexId
from spass.rag.index.responses import Hit

_TAGS: Final = TagSanitizer("document", "documents", "retrieved")


def render_context(hits: Sequence[Hit], index_id: IndexId) -> str:
    """Render ``hits`` as one block for a model, best first. Without hits it is empty.

    The text of a document cannot end the block or begin another document: the bracket of such a tag becomes ``&lt;``.
    """
    if not hits:
        return ""
    # The defence removes invisible characters later, and such a character could hide a tag from the sanitizer.
    texts = [_TAGS.sanitize(strip_invisible(hit.text), "&lt;") for hit in hits]
    documents = "\n".join(f'<document id="{hit.id}">\n{text}\n</document>' for hit, text in zip(hits, texts, strict=True))
    return f'<retrieved index="{index_id}" for="the message that follows">\n{documents}\n</retrieved>'
