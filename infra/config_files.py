"""The operator's files as a deployment needs them beforehand: where they are, and which models of Bedrock ``gateway.yaml`` names.

Whether the file is right is the runtime's to say: ``make validate`` comes before every synthesis.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml  # type: ignore[import-untyped]

# As the provider reads the region out of its address.
_REGION: Final = re.compile(r"\bbedrock-runtime(?:-fips)?\.([a-z]{2}(?:-[a-z]+)+-[0-9])\.")

ROOT: Final = Path(__file__).resolve().parents[1]


def gateway_file() -> Path:
    """The file that is bundled: ``SPASS_CONFIG``, as ``make validate`` reads it, so that what is checked is what is deployed."""
    return Path(os.environ.get("SPASS_CONFIG") or ROOT / "gateway.yaml").resolve()


def agents_folder() -> Path:
    """The agents that are bundled: ``SPASS_AGENTS``, likewise."""
    return Path(os.environ.get("SPASS_AGENTS") or ROOT / "agents").resolve()


class BedrockModel(NamedTuple):
    """A model as a backend calls it: by an id or an ARN, in a region; "" is the deployment's own."""

    region: str
    name: str


def bedrock_models(gateway: Path) -> list[BedrockModel]:
    """Return the models that the backends of provider ``bedrock`` call with the functions' roles, each once, in order.
    A backend with a key does not use the roles."""
    file = yaml.safe_load(gateway.read_text(encoding="utf-8")) or {}
    backends = (file.get("llm") or {}).get("backends") or ()
    signed = [one for one in backends if one.get("provider") == "bedrock" and not one.get("api_key_env")]
    return sorted({model for backend in signed for model in _called(backend)})


def _called(backend: dict[str, Any]) -> Iterator[BedrockModel]:
    region = _REGION.search(backend.get("base_url") or "")
    translated: dict[str, str] = backend.get("model_names") or {}
    for name in (*translated.values(), *(one for one in backend.get("supported_models") or () if one not in translated)):
        yield BedrockModel(region[1] if region else "", str(name))
