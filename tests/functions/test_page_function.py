"""The function of the page starts from its bundle alone: without the library's upper floors, boto3 and the operator's files."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from infra import bundling
from infra.routes import ROUTES, Surface
from tests.functions.gateway import event

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = [route for route in ROUTES if route.surface is Surface.PAGE]
_START: Final = """
import asyncio, json, sys
from functions.workers.shared import handler
asyncio.set_event_loop(asyncio.new_event_loop())
answers = [handler(event, None) for event in json.load(sys.stdin)]
print(json.dumps([answers, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that becomes the root of the function."""
    folder = tmp_path_factory.mktemp("bundle")
    bundling.function_code(
        folder,
        sources=[ROOT / "functions", ROOT / "shared" / "spass"],
        excluded=[ROOT / "shared" / "spass" / "testing"],
        start_script=ROOT / "infra" / "assets" / "run.sh",
        compiler=None,
    )
    return folder


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> Mapping[str, Any]:
    """Add the page to the bundle, and return the manifest of its build."""
    bundling.page(bundle, ROOT)
    found: Mapping[str, Any] = json.loads((bundle / ".page" / "manifest.json").read_text())
    return found


def answers_and_modules(bundle: Path, asset: str) -> tuple[list[Any], set[str]]:
    """Start the function. Return its answers to a request for each of its rows, and all modules that it imported."""
    events = [event("GET", route.path.format(asset=asset), route.resource, {}, b"") for route in ROWS]
    variables = {
        "AWS_LAMBDA_FUNCTION_NAME": "page",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "SPASS_BUCKET": "uploads",
        "SPASS_CONFIG": str(bundle / "absent.yaml"),
        "SPASS_ROUTES": ",".join(f"functions.{route.module}" for route in ROWS),
        "PYTHONPATH": str(bundle),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-c", _START]
    process = subprocess.run(
        command, cwd=bundle, env=variables, input=json.dumps(events), capture_output=True, check=True, text=True
    )
    answers, modules = json.loads(process.stdout.splitlines()[-1])
    return answers, set(modules)


@pytest.fixture(scope="module")
def started(bundle: Path, manifest: Mapping[str, Any]) -> tuple[list[Any], set[str]]:
    return answers_and_modules(bundle, next(iter(manifest["files"])))


def test_one_function_serves_all_rows_of_the_page() -> None:
    assert {(route.path, route.function_name, route.long, route.public) for route in ROWS} == {
        ("/", "page", False, True),
        ("/ui", "page", False, True),
        ("/ui/{asset}", "page", False, True),
    }


def test_without_a_build_the_page_is_503_and_says_what_to_run(tmp_path: Path, bundle: Path) -> None:
    unbuilt = shutil.copytree(bundle, tmp_path / "bundle", ignore=shutil.ignore_patterns(".page"))
    (root, page, asset), _ = answers_and_modules(unbuilt, "app.js")
    assert root["statusCode"] == 302
    for answer in (page, asset):
        error = json.loads(answer["body"])["error"]
        assert (answer["statusCode"], error["type"], error["code"]) == (503, "api_error", "page_not_built")
        assert "make page" in error["message"]


def test_the_function_serves_the_page_from_its_bundle(
    bundle: Path, manifest: Mapping[str, Any], started: tuple[list[Any], set[str]]
) -> None:
    (root, page, asset), _ = started
    assert (root["statusCode"], root["headers"]["location"]) == (302, "/prod/ui")
    assert (page["statusCode"], page["body"]) == (200, (bundle / ".page" / manifest["page"]).read_text(encoding="utf-8"))
    assert "connect-src 'self' https://uploads.s3.eu-central-1.amazonaws.com;" in page["headers"]["content-security-policy"]
    file = bundle / ".page" / next(iter(manifest["files"]))
    assert (asset["statusCode"], asset["body"]) == (200, file.read_text(encoding="utf-8"))


def test_the_function_imports_neither_boto3_nor_the_librarys_upper_floors(started: tuple[list[Any], set[str]]) -> None:
    _, modules = started
    rooms = {".".join(module.split(".")[:2]) for module in modules if module.startswith("spass.")}
    assert rooms == {"spass.aws", "spass.core", "spass.redaction", "spass.tenancy", "spass.web"}
    assert not {"boto3", "botocore", "httpx", "numpy", "yaml", "spass.tenancy.config", "spass.aws.clients"} & modules
