"""Other gateways, started as their documentation says, in front of the same upstream.

LiteLLM's proxy: one worker, no database, a key, the model's price known. Portkey's gateway: as its npm package starts it; it
knows neither keys nor prices. ``make bench`` installs both.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.processes import ROOT, TOKEN, RunningServer, free_port, process

_LITELLM: Final = ROOT / ".venv-peers" / "bin" / "litellm"
_PORTKEY: Final = ROOT / "bench" / "peers" / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"


def installed() -> bool:
    return _LITELLM.exists() and _PORTKEY.exists() and shutil.which("node") is not None


@contextmanager
def litellm(folder: Path, upstream: str) -> Iterator[RunningServer]:
    config = folder / "litellm.yaml"
    config.write_text(
        f"""
model_list:
  - model_name: bench-model
    litellm_params:
      {{model: openai/bench-model, api_base: "{upstream}/v1", api_key: key,
        input_cost_per_token: 0.000001, output_cost_per_token: 0.000002}}
general_settings: {{master_key: {TOKEN}}}
"""
    )
    port = free_port()
    command = [str(_LITELLM), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    # Nothing is fetched at the start, and it logs no more than errors.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PYTHONPATH": ""}
    with process(command, port, environment) as running:
        yield running


@contextmanager
def portkey() -> Iterator[RunningServer]:
    port = free_port()
    node = shutil.which("node") or sys.exit("Node.js is not on the PATH.")
    with process([node, str(_PORTKEY), f"--port={port}", "--headless"], port, {"NODE_ENV": "production"}) as running:
        yield running


def portkey_headers(upstream: str) -> Mapping[str, str]:
    """Return the headers that a request needs, because this proxy has no configuration of its own."""
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": f"{upstream}/v1"}
