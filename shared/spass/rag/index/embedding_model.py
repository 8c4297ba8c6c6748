"""The configured embedding model, and the check that an index was built with it. This does not need numpy."""

from dataclasses import dataclass

from spass.core.errors import EmbeddingModelMismatch
from spass.rag.index.manifest import Manifest


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """An embedding model and the dimensions of its vectors."""

    name: str
    dimensions: int


def check_model(manifest: Manifest, model: EmbeddingModel) -> None:
    """Check that an index that exists was built with ``model``.

    Raises:
        EmbeddingModelMismatch: the index was built with another model or dimension.
    """
    if manifest.exists and (manifest.embedding_model, manifest.dimensions) != (model.name, model.dimensions):
        raise EmbeddingModelMismatch(
            f"The index was built with {manifest.embedding_model} ({manifest.dimensions} dimensions), "
            f"but {model.name} ({model.dimensions}) is configured now; replace the index, or configure its model again."
        )
