"""The operator's files as a deployment needs them beforehand: where they are, and which models of Bedrock ``gateway.yaml`` names.

Whether the file is right is the runtime's to say: ``make validate`` comes before every synthesis.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).resolve().parents[1]


def gateway_file() -> Path:
    """The file that is bundled: ``SPASS_CONFIG``, as ``make validate`` reads it, so that what is checked is what is deployed."""
    return Path(os.environ.get("SPASS_CONFIG") or ROOT / "gateway.yaml").resolve()


def agents_folder() -> Path:
    """The agents that are bundled: ``SPASS_AGENTS``, likewise."""
    return Path(os.environ.get("SPASS_AGENTS") or ROOT / "agents").resolve()


def bedrock_models(gateway: Path) -> list[str]:
    """The ids or ARNs by which its backends of provider ``bedrock`` call models, each once, in order."""
    file = yaml.safe_load(gateway.read_text(encoding="utf-8")) or {}
    backends = (file.get("llm") or {}).get("backends") or ()
    return sorted({name for backend in backends if backend.get("provider") == "bedrock" for name in _called(backend)})


def _called(backend: dict[str, Any]) -> Iterator[str]:
    translated: dict[str, str] = backend.get("model_names") or {}
    yield from translated.values()
    yield from (name for name in backend.get("supported_models") or () if name not in translated)
