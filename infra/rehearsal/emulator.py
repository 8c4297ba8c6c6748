"""Run the emulator of a rehearsal, and the model that answers in it."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.bundling import find_compiler
from infra.rehearsal.processes import Server, free_port, server

REGION: Final = "eu-central-1"
_CHILD: Final = (sys.executable, "-m", "local.child")
"""Runs a module that ends with this process, even if something kills it."""


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running emulator."""

    endpoint: str
    server: Server
    functions: Path
    """The folder with the log of each instance of a function."""

    def variables(self) -> dict[str, str]:
        """Return the variables with which a program reaches the emulator and no AWS account."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CDK_", "SPASS_"))}
        return kept | {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "rehearsal",
            "AWS_SECRET_ACCESS_KEY": "rehearsal",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "CDK_DISABLE_CLI_TELEMETRY": "1",
            "PYTHONPATH": f"shared{os.pathsep}.",
        }


@contextmanager
def running_emulator(home: Path, port: int | None = None) -> Iterator[Emulator]:
    """Run the corrected emulator with its files in ``home`` until the block ends, by default on a free port.

    Raises:
        RehearsalFailed: the port is taken, or the emulator does not start.
    """
    port = port or free_port()
    endpoint = f"http://127.0.0.1:{port}"
    folder = home / "emulator"
    folder.mkdir()
    settings = {"folder": str(folder), "endpoint": endpoint, "python": str(find_compiler())}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        "REHEARSAL": json.dumps(settings),
        "MINISTACK_REGION": REGION,
        "GATEWAY_PORT": str(port),
        "PERSIST_STATE": "0",
        "STATE_DIR": str(folder / "state"),
        "S3_PERSIST": "1",
        "S3_DATA_DIR": str(folder / "objects"),
        "IOT_MTLS_ENABLED": "0",  # it would listen on a fixed port
        "LOG_LEVEL": "ERROR",
        "PYTHONPATH": f"shared{os.pathsep}.",
    }
    command = [*_CHILD, "hypercorn", "infra.rehearsal.emulated:app", "--bind", f"127.0.0.1:{port}", "--workers", "0"]
    with server("the emulator", command, port=port, log=home / "emulator.log", environment=environment) as running:
        yield Emulator(endpoint, running, folder / "logs")


@contextmanager
def running_model(home: Path, port: int) -> Iterator[Server]:
    """Run the stand-in of the laptop, which answers as a model does, until the block ends."""
    environment = {**os.environ, "PYTHONPATH": f"shared{os.pathsep}."}
    command = [*_CHILD, "local.standin", "--port", str(port)]
    with server("the model", command, port=port, log=home / "model.log", environment=environment) as running:
        yield running
