"""Fixtures that run the gateway as a separate process (``python -m local``), so that tests use it as an outside client does."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from configparser import ConfigParser
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
import yaml

from local.processes import free_port
from tests.e2e.malformed_requests import ADMIN_TOKEN, TOKEN

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0


@dataclass
class Gateway:
    """A gateway that runs as a separate process, with its state in ``home``."""

    home: Path
    port: int = field(default_factory=free_port)
    environment: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return (self.home.parent / f"{self.home.name}.log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "local"],
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the gateway exited during its start:\n{self.output}"
            try:
                if httpx.get(f"{self.url}/healthz", timeout=2, trust_env=False).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        pytest.fail(f"the gateway did not answer within {START_SECONDS:.0f} s:\n{self.output}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Send the signal, wait for the process and return its exit code."""
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(60)

    def client(self, token: str = "demo-token", user: str = "ada") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}", "SPASS-User-Id": user}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def aws_environment(self) -> dict[str, str]:
        """Return the variables with which a process calls the emulated AWS of this gateway. Each start has other ones."""
        config = ConfigParser()
        config.read(self.home / "aws.config")
        settings = config["default"]
        return {
            "AWS_ENDPOINT_URL": settings["endpoint_url"],
            "AWS_ACCESS_KEY_ID": settings["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": settings["aws_secret_access_key"],
            "AWS_REGION": settings["region"],
            "AWS_DEFAULT_REGION": settings["region"],
        }

    def aws_client(self, service: str) -> Any:
        """Return a boto3 client for a service of the emulated AWS of this gateway."""
        found = self.aws_environment()
        session = boto3.Session(found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"], region_name=found["AWS_REGION"])
        return session.client(service, endpoint_url=found["AWS_ENDPOINT_URL"])  # type: ignore[call-overload]

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SPASS_"))}
        # Without these, a provider key or an Ollama server of the developer would answer instead of the stand-in model.
        keys = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "GROQ_API_KEY", "AWS_ENDPOINT_URL"), "")
        no_ollama = {"OLLAMA_BASE_URL": "http://127.0.0.1:9"}
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), str(ROOT)])}
        return (
            inherited | keys | no_ollama | paths | {"PORT": str(self.port), "SPASS_HOME": str(self.home)} | dict(self.environment)
        )


@contextmanager
def running_gateway(folder: Path, config: str, agents: Mapping[str, str] | None = None) -> Iterator[Gateway]:
    """Run a gateway with this gateway.yaml and these agents (files by name) until the block ends. Its state is in ``folder``."""
    (folder / "gateway.yaml").write_text(config)
    (folder / "agents").mkdir()
    for name, text in (agents or {}).items():
        (folder / "agents" / f"{name}.yaml").write_text(text)
    environment = {"SPASS_CONFIG": str(folder / "gateway.yaml"), "SPASS_AGENTS": str(folder / "agents")}
    gateway = Gateway(folder / "home", environment=environment)
    gateway.start()
    try:
        yield gateway
    finally:
        assert gateway.process is not None
        if gateway.process.poll() is None:
            gateway.stop()


def _token(token: str) -> dict[str, object]:
    return {"id": token.removesuffix("-token"), "sha256": hashlib.sha256(token.encode()).hexdigest()}


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for all tests that only send requests. Tests that attack it use the tenant ``fuzz``."""
    folder = tmp_path_factory.mktemp("gateway")
    config = yaml.safe_load((ROOT / "gateway.yaml").read_text())
    config["tenants"] = [
        *(config["tenants"] or ()),
        {"id": "fuzz", "tokens": [_token(TOKEN), _token(ADMIN_TOKEN) | {"admin": True}]},
    ]
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config))
    running = Gateway(folder / "home", environment={"SPASS_CONFIG": str(folder / "gateway.yaml")})
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def base_url(gateway: Gateway) -> str:
    return gateway.url


@pytest.fixture
def new_gateway(tmp_path: Path) -> Iterator[Callable[[], Gateway]]:
    """Return a factory of gateways that a test starts and stops itself. They share one home."""
    gateways: list[Gateway] = []

    def make() -> Gateway:
        gateways.append(Gateway(tmp_path / "home"))
        return gateways[-1]

    yield make
    for gateway in gateways:
        if gateway.process is not None and gateway.process.poll() is None:
            gateway.stop(signal.SIGTERM)
