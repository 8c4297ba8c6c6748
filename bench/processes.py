"""Processes that a bench needs: an emulated AWS with the table and the bucket, and servers on free ports."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import boto3

ROOT: Final = Path(__file__).parent.parent
REGION: Final = "eu-central-1"
TOKEN: Final = "bench-token"
ADMIN_TOKEN: Final = "bench-admin-token"
TOOLS_TOKEN: Final = "bench-tools-token"
"""The token of a tenant whose chats have the gateway's calculator, if ``write_config`` adds it."""
USER: Final = "bench"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def silence_logs() -> Iterator[None]:
    """Do not print the log lines that a gateway in this process writes to standard output."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def with_one_thread(module: str) -> None:
    """Restart as ``python -m module`` with one thread for numerical libraries. They read their limits when they are loaded."""
    limits = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if limits.items() - os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, **limits})


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that runs: its base URL and its process."""

    base: str
    pid: int


@contextmanager
def process(command: list[str], port: int, environment: Mapping[str, str], checkout: Path = ROOT) -> Iterator[RunningServer]:
    """Run ``command`` with the code of ``checkout`` until the block ends. Yield it when a server listens on ``port``."""
    running = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": f"{checkout / 'shared'}{os.pathsep}{checkout}", **environment},
        cwd=checkout,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        base = f"http://127.0.0.1:{port}"
        for _ in range(1200):
            if running.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended at once")
            try:
                urllib.request.urlopen(base + "/", timeout=1)
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.05)
            else:
                break
        yield RunningServer(base, running.pid)
    finally:
        running.terminate()
        running.wait(10)


@contextmanager
def served(app: str, environment: Mapping[str, str], checkout: Path = ROOT) -> Iterator[RunningServer]:
    """Serve an ASGI app of ``checkout`` with one uvicorn worker."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "error", "--no-access-log"]
    with process(command, port, environment, checkout) as running:
        yield running


@contextmanager
def server(app: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Serve an ASGI app and yield its base URL."""
    with served(app, environment) as running:
        yield running.base


@contextmanager
def emulated_aws() -> Iterator[dict[str, str]]:
    """Run ministack with our table and bucket. Yield the environment with which the gateway uses it."""
    port = free_port()
    environment = {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "PERSIST_STATE": "0",
        "S3_PERSIST": "0",
        "MINISTACK_REGION": REGION,
    }
    with process([sys.executable, "-m", "ministack"], port, environment) as emulator:
        base = emulator.base
        leading = {
            "AWS_ENDPOINT_URL": base,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "SPASS_TABLE": "spass",
            "SPASS_BUCKET": "spass",
        }
        session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)
        session.client("dynamodb", endpoint_url=base).create_table(
            TableName="spass",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "S"}],
        )
        session.client("s3", endpoint_url=base).create_bucket(
            Bucket="spass", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
        )
        yield leading | _job_targets(session, base)


def _job_targets(session: boto3.Session, base: str) -> dict[str, str]:
    """Create queues and a state machine that accept jobs and do nothing. A bench runs the jobs itself."""
    states, queues = session.client("stepfunctions", endpoint_url=base), session.client("sqs", endpoint_url=base)
    definition = json.dumps({"StartAt": "Done", "States": {"Done": {"Type": "Succeed"}}})
    role = "arn:aws:iam::000000000000:role/bench"
    session.client("scheduler", endpoint_url=base).create_schedule_group(Name="bench")
    runs = queues.create_queue(QueueName="runs")["QueueUrl"]
    arn = queues.get_queue_attributes(QueueUrl=runs, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    machine = states.create_state_machine(name="compactions", definition=definition, roleArn=role)
    return {
        "SPASS_COMPACTION_QUEUE": queues.create_queue(QueueName="compactions")["QueueUrl"],
        "SPASS_COMPACTION_MACHINE": machine["stateMachineArn"],
        "SPASS_RUNS_QUEUE": runs,
        "SPASS_RUNS_QUEUE_ARN": arn,
        "SPASS_SCHEDULE_GROUP": "bench",
        "SPASS_SCHEDULE_ROLE": role,
    }


def hash_token(token: str) -> str:
    """Return what ``gateway.yaml`` has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


_TENANT_WITH_TOOLS: Final = f"""
  - id: bench-tools
    defaults: {{tools_enabled_default: [calculator]}}
    tokens:
      - {{id: bench-tools, sha256: {hash_token(TOOLS_TOKEN)}}}
"""


def write_config(
    folder: Path,
    upstream: str,
    embedding_model: str = "all-minilm-l6-v2",
    *,
    summaries: str | None = None,
    with_tools: bool = False,
) -> dict[str, str]:
    """A gateway.yaml with priced models and one embedding model at ``upstream``, and an agent with a large and one with a small
    context window; gives the environment that names them. Indices are embedded by ``embedding_model``: the gateway's own, or
    bench-embedding. ``summaries`` is where the model of summaries answers, if not at ``upstream`` too. ``with_tools`` adds a
    tenant and an agent with a calculator."""
    (folder / "gateway.yaml").write_text(
        f"""
llm:
  strategy: failover
  backends:
    - {{name: upstream, provider: openai, base_url: {upstream}/v1, api_key_env: BENCH_KEY,
       supported_models: [bench-model, bench-small, bench-embedding]}}
    - {{name: summaries, provider: openai, base_url: {summaries or upstream}/v1, api_key_env: BENCH_KEY,
       supported_models: [bench-summary]}}
    - {{name: embedded, provider: embedded}}
models:
  - {{name: bench-model, context_window: 128000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: bench-small, context_window: 1000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: bench-summary, context_window: 128000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
  - {{name: bench-embedding, kind: embedding, dimensions: 768, context_window: 8192}}
defaults: {{embedding_model: {embedding_model}, compact_summary_model: bench-summary}}
usd_to_eur: 0.92
tenants:
  - id: bench
    tokens:
      - {{id: bench, sha256: {hash_token(TOKEN)}}}
      - {{id: bench-admin, sha256: {hash_token(ADMIN_TOKEN)}, admin: true}}
{_TENANT_WITH_TOOLS if with_tools else ""}"""
    )
    agents = folder / "agents"
    agents.mkdir()
    said = "description: Answers at once.\nsystem_prompt: Answer.\n"
    for name, model in (("bench", "bench-model"), ("bench-small", "bench-small")):
        (agents / f"{name}.yaml").write_text(f"name: {name}\nmodel: {model}\n{said}")
    if with_tools:
        (agents / "bench-tools.yaml").write_text(f"name: bench-tools\nmodel: bench-model\ntools: [calculator]\n{said}")
    return {"SPASS_CONFIG": str(folder / "gateway.yaml"), "SPASS_AGENTS": str(agents), "BENCH_KEY": "key"}
