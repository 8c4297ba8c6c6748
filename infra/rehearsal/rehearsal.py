"""The state of a rehearsal: the emulated account, the assemblies, and what the steps have made."""

import hashlib
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import boto3
import httpx

from infra.rehearsal.assemblies import ENVIRONMENT, Assemblies
from infra.rehearsal.emulator import REGION, Emulator
from infra.rehearsal.processes import ROOT, RehearsalFailed, run

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient

Json: TypeAlias = Any

ACCOUNT: Final = "000000000000"
DATA_STACK: Final = f"Spass-{ENVIRONMENT}-Data"
API_STACK: Final = f"Spass-{ENVIRONMENT}-Api"
AGENT: Final = "rehearsal"
MODEL: Final = "stand-in"
EMBEDDING: Final = "all-minilm-l6-v2"
KEY: Final = "REHEARSAL_API_KEY"
_CDK: Final = ROOT / "node_modules" / ".bin" / "cdk"


def _gateway_file(token: str, model: str) -> str:
    """Return the operator's file of a rehearsal: one tenant with an admin's token, and models that are on this machine."""
    return json.dumps(
        {
            "llm": {
                "backends": [
                    {"name": "model", "provider": "openai", "base_url": model, "api_key_env": KEY, "supported_models": [MODEL]},
                    {"name": "embedded", "provider": "embedded", "supported_models": [EMBEDDING]},
                ]
            },
            "models": [
                {"name": MODEL, "context_window": 131072, "usd_per_mtok_in": 1, "usd_per_mtok_out": 1},
                {"name": EMBEDDING, "kind": "embedding", "dimensions": 384, "context_window": 256, "usd_per_mtok_in": 0},
            ],
            "defaults": {"embedding_model": EMBEDDING, "compact_summary_model": MODEL},
            "usd_to_eur": 1,
            "tenants": [
                {
                    "id": "rehearsal",
                    "tokens": [{"id": "rehearsal", "sha256": hashlib.sha256(token.encode()).hexdigest(), "admin": True}],
                }
            ],
        },
        indent=1,
    )


def write_operators_files(folder: Path, token: str, model: str) -> None:
    """Write ``gateway.yaml`` and the folder ``agents`` of a rehearsal. ``model`` is the address of the model."""
    (folder / "agents").mkdir(parents=True)
    (folder / "gateway.yaml").write_text(_gateway_file(token, model), encoding="utf-8")
    agent = {"name": AGENT, "description": "Answers in a rehearsal.", "model": MODEL, "system_prompt": "Answer briefly."}
    (folder / "agents" / f"{AGENT}.yaml").write_text(json.dumps(agent), encoding="utf-8")


def new_token() -> str:
    return secrets.token_hex(16)


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """The state that the steps share."""

    home: Path
    log: Path
    token: str
    assemblies: Assemblies
    emulator: Emulator
    now: Path = field(init=False)
    """The assembly of the code as it is."""
    kept: Path = field(init=False)
    """The assembly of the last release."""
    session: str = field(init=False)
    """A session that the last release has written."""
    scheduled: str = field(init=False)
    """The path of a managed agent that runs by a schedule."""

    def cdk(self, *arguments: str, app: Path) -> str:
        """Run the CDK's command line with an assembly, and return what it prints."""
        command: list[str | Path] = [_CDK, *arguments, "--app", app, "--ci", "--no-color", "--no-notices", "--progress", "events"]
        return run(command, log=self.log, environment=self.emulator.variables())

    def deploy(self, assembly: Path, *, stacks: Sequence[str] = (f"Spass-{ENVIRONMENT}-*",)) -> str:
        """Deploy stacks as an operator does, by default all, and return what the CDK prints."""
        return self.cdk("deploy", *stacks, "--require-approval", "never", "--asset-parallelism", "true", app=assembly)

    def operate(self, *arguments: str) -> str:
        """Run a command of the operator, and return what it prints."""
        environment = self.emulator.variables() | {"SPASS_TOKEN": self.token}
        return run([sys.executable, "-m", "operate", *arguments], log=self.log, environment=environment)

    def stacks(self) -> "CloudFormationClient":
        client: CloudFormationClient = self.client("cloudformation")
        return client

    def client(self, service: str) -> Json:
        """Return a client of the emulated account."""
        session = boto3.Session(aws_access_key_id="rehearsal", aws_secret_access_key="rehearsal", region_name=REGION)
        return session.client(service, endpoint_url=self.emulator.endpoint)  # type: ignore[call-overload]

    def output(self, stack: str, name: str) -> str:
        """Return an output of a deployed stack."""
        outputs = self.stacks().describe_stacks(StackName=stack)["Stacks"][0]["Outputs"]
        return next(one["OutputValue"] for one in outputs if one["OutputKey"] == name)

    @property
    def url(self) -> str:
        """Return the address of the deployed gateway. The emulator serves it under a path of its own."""
        api = self.output(API_STACK, "Url").removeprefix("https://").split(".")[0]
        return f"{self.emulator.endpoint}/_aws/execute-api/{api}/{ENVIRONMENT}"

    def gateway(self) -> httpx.Client:
        """Return a client of the deployed gateway."""
        headers = {"Authorization": f"Bearer {self.token}", "SPASS-User-Id": "rehearsal"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False)

    def call(self, method: str, path: str, body: Json = None, *, status: int = 200) -> Json:
        """Return the answer of the gateway to a request.

        Raises:
            RehearsalFailed: its status is another one.
        """
        with self.gateway() as gateway:
            answer = gateway.request(method, path, json=body)
        if answer.status_code != status:
            raise RehearsalFailed(f"{method} {path} answered {answer.status_code}, not {status}: {answer.text[:2000]}")
        return answer.json() if answer.content else None

    def stream(self, path: str, body: Json) -> list[Json]:
        """Return the events of a streamed turn.

        Raises:
            RehearsalFailed: the turn did not end well.
        """
        with self.gateway() as gateway:
            text = gateway.post(path, json=body).text
        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
        if not events or events[-1].get("type") != "done":
            raise RehearsalFailed(f"POST {path} did not end well: {text[-2000:]}")
        return events
