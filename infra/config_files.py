"""Find the operator's files at synthesis, and what a synthesis needs of ``gateway.yaml``.

This module does not validate the file. ``make validate`` does so before every synthesis.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml  # type: ignore[import-untyped]

# The provider reads the region from ``base_url`` in the same way.
_REGION: Final = re.compile(r"\bbedrock-runtime(?:-fips)?\.([a-z]{2}(?:-[a-z]+)+-[0-9])\.")

ROOT: Final = Path(__file__).resolve().parents[1]


def gateway_file() -> Path:
    """Return the path of the file to bundle: ``SPASS_CONFIG``, by default ``gateway.yaml``. ``make validate`` checks the same
    file."""
    return Path(os.environ.get("SPASS_CONFIG") or ROOT / "gateway.yaml").resolve()


def agents_folder() -> Path:
    """Return the folder of the agents to bundle: ``SPASS_AGENTS``, by default ``agents``."""
    return Path(os.environ.get("SPASS_AGENTS") or ROOT / "agents").resolve()


def environments_file() -> Path | None:
    """Return the path of the operator's settings of environments: ``SPASS_ENVIRONMENTS``, by default ``environments.yaml`` if
    there is one."""
    if named := os.environ.get("SPASS_ENVIRONMENTS"):
        return Path(named).resolve()
    default = ROOT / "environments.yaml"
    return default if default.exists() else None


def has_tenant_with_token(gateway: Path) -> bool:
    """Return whether a tenant in ``gateway.yaml`` has a token. No other tenant can send a request."""
    return any(tenant.get("tokens") for tenant in _read(gateway).get("tenants") or ())


class BedrockModel(NamedTuple):
    """A model that a backend calls: its id or ARN, and its region. The region "" means that of the deployment."""

    region: str
    name: str


def bedrock_models(gateway: Path) -> list[BedrockModel]:
    """Return the models that the backends of provider ``bedrock`` call with the functions' roles, each once, in order.
    A backend with a key does not use the roles."""
    backends = (_read(gateway).get("llm") or {}).get("backends") or ()
    signed = [one for one in backends if one.get("provider") == "bedrock" and not one.get("api_key_env")]
    return sorted({model for backend in signed for model in _models_of(backend)})


def _read(gateway: Path) -> dict[str, Any]:
    file: dict[str, Any] = yaml.safe_load(gateway.read_text(encoding="utf-8")) or {}
    return file


def _models_of(backend: dict[str, Any]) -> Iterator[BedrockModel]:
    region = _REGION.search(backend.get("base_url") or "")
    translated: dict[str, str] = backend.get("model_names") or {}
    for name in (*translated.values(), *(one for one in backend.get("supported_models") or () if one not in translated)):
        yield BedrockModel(region[1] if region else "", str(name))
