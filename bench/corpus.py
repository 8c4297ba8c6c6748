"""Sentences of real text and their vectors: the project's documentation, and docstrings of the gateway and the standard library.

The sentences depend only on the files of this checkout and on the version of Python. Modules are parsed, not imported.
"""

import ast
import asyncio
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench.processes import ROOT
from spass.core.time import Deadline
from spass.models.providers.embedded import MODEL, EmbeddedProvider
from spass.models.types import CallContext, EmbeddingRequest
from spass.rag.index.embedding import normalise
from spass.rag.index.segments import Vectors
from spass.tenancy.config import BackendConfig

_MIN_WORDS: Final = 5
_MAX_WORDS: Final = 40
_SECONDS: Final = 3600.0  # for one call of the embedding model
_CODE: Final = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.DOTALL | re.MULTILINE)
_END: Final = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`\"'(*])|\n\s*\n|\n\s*[-*#|>]+ ")
_OPTIONAL: Final = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"})
"""Folders of the standard library that are not installed everywhere, or are not part of it."""


def document_sentences() -> Iterator[str]:
    """Yield the sentences of README.md and of the pages in ``docs``, in the order of paths, without blocks of code."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield from _sentences(_CODE.sub("", page.read_text(encoding="utf-8")))


def docstring_sentences() -> Iterator[str]:
    """Yield the sentences of the docstrings of the gateway and of the standard library. The modules are shuffled, always in the
    same way, so that the first sentences are not all from a few packages."""
    library = Path(sysconfig.get_path("stdlib"))
    installed = (path for path in library.rglob("*.py") if not _OPTIONAL & {*path.relative_to(library).parts})
    modules = [*sorted((ROOT / "shared").rglob("*.py")), *sorted(installed)]
    random.Random(1).shuffle(modules)
    for module in modules:
        for docstring in _docstrings(module):
            yield from _sentences(docstring)


def _docstrings(module: Path) -> Iterator[str]:
    """Yield the docstrings of ``module``, of its classes and of its functions."""
    with warnings.catch_warnings(action="ignore"):  # of escapes that a later version of Python will refuse
        tree = ast.parse(module.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of ``text`` that have 5 to 40 words, each on one line. Shorter parts are rarely sentences, and longer
    ones are tables or signatures."""
    for part in _END.split(text):
        words = part.split()
        if _MIN_WORDS <= len(words) <= _MAX_WORDS:
            yield " ".join(words)


def embed(texts: Sequence[str]) -> Vectors:
    """Return the vectors of ``texts`` from the built-in model: (n, 384) float32, rows normalised. Equal texts get equal vectors.

    Raises:
        BackendUnavailable: the weights are not installed.
    """
    different = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    provider = EmbeddedProvider(BackendConfig(name="embedded", provider="embedded"), None)
    reply = asyncio.run(provider.embed(EmbeddingRequest(MODEL, tuple(different)), CallContext(Deadline.after(_SECONDS))))
    vectors = normalise(np.frombuffer(reply.data, "<f4").reshape(reply.count, reply.dimensions))
    return vectors[[different[text] for text in texts]]
