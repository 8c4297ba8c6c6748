"""Compute all-MiniLM-L6-v2 in numpy: a BERT encoder of 6 layers, mean pooling, vectors of length 1.

The model is https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2; the forward pass follows BERT (Devlin et al. 2018,
https://arxiv.org/abs/1810.04805) and the file format https://github.com/huggingface/safetensors#format.
"""

import json
import math
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Floats: TypeAlias = npt.NDArray[np.float32]

DIMENSIONS: Final = 384
WINDOW: Final = 256
"""The maximum number of tokens in one input, including the two special tokens [CLS] and [SEP]."""

_LAYERS: Final = 6
_HEADS: Final = 12
_NORM_EPSILON: Final = 1e-12
_CLS: Final = 101
_SEP: Final = 102
_GELU_ROWS: Final = 64  # rows per step, so that the temporary arrays fit into the processor's cache
_BATCH_TOKENS: Final = 1024  # limits the memory of one forward pass to some ten megabytes


class MiniLM:
    """The model, read from ``folder`` (``model.safetensors``, ``tokenizer.json``). Weights are mapped, not copied.

    Raises:
        OSError: a file is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._weights = _read_safetensors(folder / "model.safetensors")

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens and without truncation."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def embed_tokens(self, texts: Sequence[Sequence[int]], before_batch: Callable[[], None] | None = None) -> Floats:
        """Return the vectors of tokenized texts: (n, 384) float32, rows normalised.

        Split a text that is longer than the window, average the vectors of its windows, and normalise the result. Call
        ``before_batch`` before each forward pass (some tenths of a second); it may raise an error to stop.
        """
        window_tokens = WINDOW - 2
        windows = [
            (n, ids[start : start + window_tokens])
            for n, ids in enumerate(texts)
            for start in range(0, max(len(ids), 1), window_tokens)
        ]
        windows.sort(key=lambda window: len(window[1]))  # similar lengths together, so that batches need little padding
        sums = np.zeros((len(texts), DIMENSIONS), np.float32)
        start = 0
        while start < len(windows):
            end = start + 1
            while end < len(windows) and (end + 1 - start) * (len(windows[end][1]) + 2) <= _BATCH_TOKENS:
                end += 1
            if before_batch is not None:
                before_batch()
            batch = windows[start:end]
            np.add.at(sums, [n for n, _ in batch], self._forward([ids for _, ids in batch]))
            start = end
        return _normalise(sums)

    def _forward(self, windows: Sequence[Sequence[int]]) -> Floats:
        """Return (n, 384) float32 vectors, rows normalised, for n windows of at most ``WINDOW - 2`` tokens each."""
        length = max(map(len, windows)) + 2
        ids = np.zeros((len(windows), length), np.int64)
        for row, window in zip(ids, windows, strict=True):
            row[: len(window) + 2] = (_CLS, *window, _SEP)
        mask = (np.arange(length) < np.array([[len(window) + 2] for window in windows])).astype(np.float32)
        w = self._weights
        hidden: Floats = w["embeddings.word_embeddings.weight"][ids]
        hidden += w["embeddings.position_embeddings.weight"][:length] + w["embeddings.token_type_embeddings.weight"][0]
        hidden = self._norm(hidden, "embeddings.LayerNorm")
        attention_bias = ((1.0 - mask) * np.float32(-1e9))[:, None, None, :]
        for layer in range(_LAYERS):
            hidden = self._layer(hidden, attention_bias, f"encoder.layer.{layer}")
        return _normalise((hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True))

    def _layer(self, hidden: Floats, attention_bias: Floats, name: str) -> Floats:
        count, length, width = hidden.shape
        size = width // _HEADS

        def heads(part: str) -> Floats:
            return self._dense(hidden, f"{name}.attention.self.{part}").reshape(count, length, _HEADS, size).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2)
        scores *= np.float32(1 / math.sqrt(size))
        scores += attention_bias
        attended = _softmax(scores) @ heads("value")
        attended = attended.transpose(0, 2, 1, 3).reshape(count, length, width)
        hidden = self._norm(
            hidden + self._dense(attended, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
        )
        inner = _gelu(self._dense(hidden, f"{name}.intermediate.dense"))
        return self._norm(hidden + self._dense(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _dense(self, values: Floats, name: str) -> Floats:
        flat: Floats = values.reshape(-1, values.shape[-1]) @ self._weights[f"{name}.weight"].T
        flat += self._weights[f"{name}.bias"]
        return flat.reshape(*values.shape[:-1], -1)

    def _norm(self, values: Floats, name: str) -> Floats:
        values = values - values.mean(axis=-1, keepdims=True)
        values /= np.sqrt(np.square(values).mean(axis=-1, keepdims=True) + np.float32(_NORM_EPSILON))
        values *= self._weights[f"{name}.weight"]
        values += self._weights[f"{name}.bias"]
        return values


def _softmax(scores: Floats) -> Floats:
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _gelu(x: Floats) -> Floats:
    """Apply GELU, x · Φ(x), in place. numpy has no erf; formula 7.1.26 of Abramowitz and Stegun has an error below 1.5e-7."""
    rows = x.reshape(-1, x.shape[-1])
    for start in range(0, len(rows), _GELU_ROWS):
        part = rows[start : start + _GELU_ROWS]
        z = np.abs(part)
        z *= np.float32(math.sqrt(0.5))
        t = z * np.float32(0.3275911)
        t += np.float32(1)
        np.reciprocal(t, out=t)
        series = t * np.float32(1.061405429)
        for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
            series += np.float32(factor)
            series *= t
        z *= z
        np.negative(z, out=z)
        np.exp(z, out=z)
        series *= z  # 1 - erf(|x| / √2)
        np.subtract(np.float32(1), series, out=series)
        np.copysign(series, part, out=series)
        series += np.float32(1)
        series *= np.float32(0.5)
        part *= series
    return x


def _normalise(rows: Floats) -> Floats:
    result: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return result


def _read_safetensors(path: Path) -> dict[str, Floats]:
    """Return the float32 tensors of a file, by name, as read-only views of the file."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(mapped[:8], "little")
    tensors = {}
    for name, entry in json.loads(mapped[8:start]).items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            flat = np.frombuffer(mapped, "<f4", count=(last - first) // 4, offset=start + first)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors
