"""Each row of ROUTES agrees with its file, and a file imports only what its route needs."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.routes import ROUTES, Route
from infra.workers import WORKERS
from spass.web.http_function import LambdaFunction, StreamApp
from tests.functions.gateway import event, openapi_document, write_operators_files

MODULES = sorted({route.module for route in ROUTES})
ROOT = Path(__file__).parents[2]

# Documents are in segments, which numpy reads; a tool's schema comes from the tool; the API's description covers all routes; the
# values of a managed agent are checked before they are stored, as before a run.
MAY_IMPORT = {"rag.documents_list", "rag.documents_get", "tools.list", "meta.openapi"}
MAY_IMPORT |= {"managed.create", "managed.patch", "managed.run"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_file_matches_its_row(route: Route) -> None:
    module = importlib.import_module(f"functions.{route.module}")
    (served,) = module.router.routes
    assert (served.path_format, served.methods) == (route.path, {route.method})
    if route.long:
        assert isinstance(module.app, StreamApp)
    else:
        assert isinstance(module.handler, LambdaFunction)


def test_the_openapi_document_has_every_route_and_answer() -> None:
    paths = openapi_document()["paths"]
    described_routes = {(method.upper(), path) for path, item in paths.items() for method in item}
    assert described_routes == {
        (route.method, route.path)
        for route in ROUTES
        if not route.module.startswith(("meta.", "page.")) or route.module == "meta.health"
    }
    for item in paths.values():
        for operation in item.values():
            for response in operation["responses"].values():
                if "application/json" not in response.get("content", ()):
                    streams = ("chat_c1_", "job_card_c1_", "follow_turn_c1_", "follow_managed_run_v1_", "send_agent_message_v1_")
                    assert operation["operationId"].startswith((*streams, "get_file_a1_", "get_archive_a1_"))
                    continue
                name = response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                assert name in openapi_document()["components"]["schemas"]


def test_every_route_file_has_a_row() -> None:
    files = {".".join(path.relative_to(ROOT / "functions").with_suffix("").parts) for path in ROOT.glob("functions/*/*.py")}
    assert {name for name in files if not name.startswith("workers.")} == set(MODULES)


_PROBE = """
import importlib, json, os, sys
import boto3, fastapi, mangum, spass.web.http_function
from botocore.client import BaseClient
from spass.aws.connections import Endpoint
from spass.aws.http_connection import Answer

async def answer_nothing(*_, **__): return Answer(200, {}, b'{"Items": []}')

BaseClient._make_api_call = lambda *_: {}
Endpoint.send = answer_nothing  # every item is absent, every write succeeds
events = json.load(sys.stdin)
for module, event in events.items():
    if os.fork() == 0:
        answer = importlib.import_module(f"functions.{module}").handler(event, None)
        slow = ("numpy", "simsimd", "httpx", "tokenizers", "uvicorn", "spass.agents.engine")
        heavy = [name for name in slow if name in sys.modules]
        print("PROBED", json.dumps([module, answer["statusCode"], heavy]), flush=True)
        os._exit(0)
    os.wait()
"""


QUERIES = {"workspaces.file_put": "?path=a.md", "workspaces.file_delete": "?path=a.md"}


def test_short_routes_do_not_import_heavy_packages_while_they_answer(tmp_path: Path) -> None:
    write_operators_files(tmp_path)
    user = {"Authorization": "Bearer demo-admin-token", "SPASS-User-Id": "ada"}
    names = {"name": "plain", "session_id": "ses_" + "0" * 26, "index_id": "notes", "doc_id": "a", "upload_id": "upl_" + "0" * 26}
    names |= {
        "request_id": "req_" + "0" * 26,
        "job_id": "job_" + "0" * 26,
        "approval_id": "apr_" + "0" * 26,
        "model": "small",
        "file": "swagger-ui.css",
        "asset": "app.js",
        "message_id": "m1",
        "workspace_id": "notes",
        "operator_id": "nobody",
        "agent_id": "agt_" + "0" * 26,
        "run_id": "run_" + "0" * 26,
    }
    bodies = {
        "rag.uploads_create": b'{"filename": "a.md", "content_type": "text/markdown", "size": 1}',
        "tenant.config_put": b"{}",
        "workspaces.restore": b'{"version": 1}',
        "workspaces.archive_put": b"PK\x05\x06" + bytes(18),  # without files
    }
    media_types = {
        "workspaces.file_put": {"Content-Type": "application/octet-stream"},
        "workspaces.archive_put": {"Content-Type": "application/zip"},
    }
    events = {
        route.module: event(
            route.method,
            route.path.format(**names) + QUERIES.get(route.module, ""),
            route.resource,
            user | media_types.get(route.module, {}),
            bodies.get(route.module, b""),
        )
        for route in ROUTES
        if not route.long and route.module not in MAY_IMPORT
    }
    environment = {
        "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}",
        "PYTHONWARNINGS": "ignore",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "SPASS_CONFIG": str(tmp_path / "gateway.yaml"),
        "SPASS_AGENTS": str(tmp_path / "agents"),
    }
    text, command = json.dumps(events), [sys.executable, "-c", _PROBE]
    probe = subprocess.run(command, cwd=ROOT, env=environment, input=text, capture_output=True, check=True, text=True)
    probed = [json.loads(line.removeprefix("PROBED ")) for line in probe.stdout.splitlines() if line.startswith("PROBED ")]
    assert {module for module, _, _ in probed} == set(events)
    for module, status, heavy in probed:
        assert status in {200, 201, 302, 404, 500}, module  # 500: the fake table leaves out what AWS always sends
        assert heavy == [], module


_START = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "numpy" in sys.modules:
        sys.exit(f"{name} imports numpy")
print("spass.agents.engine" in sys.modules)
"""


def test_a_function_that_may_not_retrieve_starts_without_numpy(tmp_path: Path) -> None:
    write_operators_files(tmp_path)
    environment = {
        "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}",
        "PYTHONWARNINGS": "ignore",
        "AWS_LAMBDA_FUNCTION_NAME": "spass-any",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "SPASS_CONFIG": str(tmp_path / "gateway.yaml"),
        "SPASS_AGENTS": str(tmp_path / "agents"),
    }
    names = [f"functions.{route.module}" for route in ROUTES if route.long and not route.module.startswith("rag.")]
    names += [f"functions.workers.{worker.module}" for worker in WORKERS if worker.module != "jobs"]
    command = [sys.executable, "-c", _START, *names]
    started = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, text=True)
    assert (started.returncode, started.stdout.splitlines()[-1:]) == (0, ["True"]), started.stderr
