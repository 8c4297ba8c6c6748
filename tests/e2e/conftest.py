"""Fixtures that run the gateway as a separate process (``python -m local``), so that tests use it as an outside client does."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3
import httpx
import pytest
import yaml

from infra.workers import WORKERS
from local.processes import free_port
from tests.e2e.malformed_requests import ADMIN_TOKEN, TOKEN
from tests.e2e.sites import SHARED, Entry, Site, agent_files, empty_config, serve_sites, tenant, token

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0
WAIT_SECONDS: Final = 150.0
"""A message that a worker has given back is delivered again after 75 seconds."""
RETRIES: Final = {"retries": 1, "retry_base_delay": 0.01}


@dataclass
class Gateway:
    """A gateway that runs as a separate process, with its state in ``home``."""

    home: Path
    port: int = field(default_factory=free_port)
    environment: Mapping[str, str] = field(default_factory=dict)
    root: Path = ROOT
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
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the gateway exited during its start:\n{self.output}"
            # It listens long before it answers. Until then a connection is refused, which costs less than a client each time.
            with suppress(OSError, httpx.TransportError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                if httpx.get(f"{self.url}/healthz", timeout=START_SECONDS, trust_env=False).is_success:
                    return
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
        paths = {"PYTHONPATH": os.pathsep.join([str(self.root / "shared"), str(self.root)])}
        return (
            inherited | keys | no_ollama | paths | {"PORT": str(self.port), "SPASS_HOME": str(self.home)} | dict(self.environment)
        )


def wait_until(condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until ``condition`` returns something true. Fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:.0f} s"
        time.sleep(0.05)


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


@contextmanager
def running_site(folder: Path, site: Site, limits: Entry | None = None) -> Iterator[Gateway]:
    """Run a gateway with this site alone until the block ends, for tests that stop it or need other ``limits``."""
    with serve_sites([site]) as upstream:
        config = empty_config()
        site.add_to(config, upstream)
        config |= {"limits": limits or {}}
        with running_gateway(folder, json.dumps(config), agent_files(*site.agents)) as gateway:
            yield gateway


@contextmanager
def shipped_gateway(folder: Path, sites: Sequence[Site], *tenants: Entry) -> Iterator[Gateway]:
    """Run a gateway with the shipped configuration and agents, and with these sites and tenants, until the block ends."""
    config = yaml.safe_load((ROOT / "gateway.yaml").read_text())
    config["llm"] |= RETRIES
    config["tenants"] = [*(config["tenants"] or ()), *tenants]
    agents = {file.stem: file.read_text() for file in (ROOT / "agents").glob("*.yaml")}
    with serve_sites(sites) as upstream:
        for site in sites:
            site.add_to(config, upstream)
            files = agent_files(*site.agents)
            assert files.keys().isdisjoint(agents), f"another site has agents of the names of '{site.name}'"
            agents |= files
        with running_gateway(folder, json.dumps(config, default=str), agents) as gateway:
            yield gateway


@contextmanager
def second_gateway(first: Gateway, home: Path) -> Iterator[Gateway]:
    """Run a gateway with the storage of another until the block ends. It runs the workers of both meanwhile."""
    second = Gateway(home, environment={**first.environment, **first.aws_environment()})
    second.start()
    try:
        yield second
    finally:
        assert second.process is not None
        if second.process.poll() is None:
            second.stop()
        functions = first.aws_client("lambda")
        for worker in WORKERS:  # without a URL of its own, a function has that of the emulator's start
            functions.update_function_configuration(
                FunctionName=f"spass-local-{worker.function_name}", Environment={"Variables": {}}
            )


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for all tests that only send requests, with the sites of all files."""
    tenants = [
        tenant("fuzz", token(TOKEN), token(ADMIN_TOKEN, admin=True)),
        tenant("tooled", defaults={"tools_enabled_default": ["calculator", "current_datetime"]}),
        tenant("guided"),
        tenant("living", token("living-token"), token("living-admin-token", admin=True)),
    ]
    with shipped_gateway(tmp_path_factory.mktemp("gateway"), [*SHARED.values()], *tenants) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def base_url(gateway: Gateway) -> str:
    return gateway.url
