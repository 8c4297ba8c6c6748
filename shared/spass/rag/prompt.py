"""How retrieved text enters a prompt: each document between tags of its own. That it is data, the input defence says."""

import re
from collections.abc import Sequence
from typing import Final

from spass.core.ids import IndexId
from spass.rag.answers import Hit

# Anything a reader could take for one of our own tags, opening or closing, however it is spaced or cased.
_TAG: Final = re.compile(r"<(?=\s*(?:/\s*)?(?:documents?|retrieved)\b)", re.IGNORECASE)


def render_context(hits: Sequence[Hit], index_id: IndexId) -> str:
    """``hits`` as one block for a model, best first; empty without hits.

    A document's text cannot end the block or begin another document: where it holds such a tag, the tag's ``<`` is written
    ``&lt;``.
    """
    if not hits:
        return ""
    documents = "\n".join(f'<document id="{hit.id}">\n{_TAG.sub("&lt;", hit.text)}\n</document>' for hit in hits)
    return f'<retrieved index="{index_id}" for="the message that follows">\n{documents}\n</retrieved>'
