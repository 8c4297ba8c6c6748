"""The parts of rag over a table and a bucket, with the embeddings of a test."""

from spass.rag.index.cache import ObjectCache
from spass.rag.index.embedding import Embedder, EmbeddingCalls
from spass.rag.search.reader import Reader
from spass.rag.write.delete import IndexDeleter
from spass.rag.write.writer import Writer
from spass.tenancy.config import GatewayConfig
from spass.tools.base import Rag


def build_rag(calls: EmbeddingCalls, config: GatewayConfig, cache: ObjectCache | None = None) -> Rag:
    """Return the parts of a worker that embeds through ``calls`` and starts with an empty cache, or with ``cache``."""
    embedder = Embedder.from_config(calls, config)
    cache = cache or ObjectCache()
    return Rag(embedder, Reader(embedder, cache), Writer(embedder, cache), IndexDeleter(cache))
