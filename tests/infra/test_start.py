"""The functions' asset, built as in a deployment, contains every handler and app that Lambda starts."""

import ast
import json
import subprocess
from pathlib import Path

import pytest
from aws_cdk import App, Stack

from infra.config_files import ROOT
from infra.constructs.layer import function_code
from infra.routes import ROUTES
from infra.workers import WORKERS

from .conftest import Deployment

LONG = sorted({route.function_name for route in ROUTES if route.long})
SHORT = sorted({route.function_name for route in ROUTES if not route.long})
HANDLERS = [*SHORT, *(worker.function_name for worker in WORKERS)]

# Stands in for Lambda's interpreter: says how it was called, a line for its path and one for each argument.
INTERPRETER = """\
#!/bin/sh
printf '%s\\n' "$PYTHONPATH" "$@"
"""


@pytest.fixture(scope="module")
def asset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that becomes ``LAMBDA_TASK_ROOT``."""
    return _asset(tmp_path_factory.mktemp("asset"))


@pytest.fixture(scope="module")
def asset_of_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that becomes ``LAMBDA_TASK_ROOT`` of the page's function."""
    return _asset(tmp_path_factory.mktemp("page"), page=True)


def _asset(folder: Path, *, page: bool = False) -> Path:
    stack = Stack(App(analytics_reporting=False, outdir=str(folder), context={"bytecode": "none"}), "Bare")
    function_code(stack, page=page).bind(stack)
    (built,) = folder.glob("asset.*")
    return built


def _variables(deployment: Deployment, name: str) -> dict[str, str]:
    variables = deployment.functions()[name]["Environment"]["Variables"]
    return {key: value for key, value in variables.items() if isinstance(value, str)}


def _assigned(asset: Path, module: str) -> set[str]:
    """Return the names that this module of the asset assigns."""
    tree = ast.parse((asset / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_the_asset_contains_routes_library_operators_files_and_start_script(asset: Path) -> None:
    files = {path.relative_to(asset) for path in asset.rglob("*") if path.is_file()}
    sources = {ROOT / "functions": ROOT, ROOT / "shared" / "spass": ROOT / "shared"}
    modules = {path.relative_to(root) for source, root in sources.items() for path in source.rglob("*.py")}
    excluded = [Path("spass/testing"), Path("spass/sandbox/foreign")]
    expected = {path for path in modules if not any(path.is_relative_to(folder) for folder in excluded)}
    agents = {Path("config", "agents", file.name) for file in (ROOT / "agents").glob("*.yaml")}
    assert files == expected | agents | {Path("config", "gateway.yaml"), Path("run.sh")}


def test_an_operators_own_files_are_deployed_and_make_another_asset(
    asset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, agents = tmp_path / "of-prod.yaml", tmp_path / "of-prod"
    gateway.write_text("tenants: []\n")
    agents.mkdir()
    (agents / "keeper.yaml").write_text("name: keeper\n")
    monkeypatch.setenv("SPASS_CONFIG", str(gateway))
    monkeypatch.setenv("SPASS_AGENTS", str(agents))
    own = _asset(tmp_path / "own")
    assert own.name != asset.name
    assert (own / "config" / "gateway.yaml").read_bytes() == gateway.read_bytes()
    assert [file.name for file in (own / "config" / "agents").iterdir()] == ["keeper.yaml"]


def test_the_asset_of_the_page_has_what_a_browser_loads_and_no_sources(asset: Path, asset_of_page: Path) -> None:
    files, others = ({path.relative_to(one) for path in one.rglob("*") if path.is_file()} for one in (asset_of_page, asset))
    manifest = json.loads((asset_of_page / ".page" / "manifest.json").read_text(encoding="utf-8"))
    served = {Path(".page", name) for name in ("manifest.json", manifest["page"], *manifest["files"])}
    assert files == others | served
    assert {path.suffix for path in served} == {".json", ".html", ".js", ".css", ".svg"}
    for path in served:
        assert (asset_of_page / path).read_bytes() == (ROOT / path).read_bytes(), "what is deployed is what was built"


@pytest.mark.parametrize("name", LONG)
def test_a_long_function_starts_its_app_on_the_adapters_port(dev: Deployment, asset: Path, tmp_path: Path, name: str) -> None:
    interpreter = tmp_path / "python3"
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    variables = _variables(dev, name)
    # As the adapter's wrapper does.
    started = subprocess.run(
        [asset / dev.functions()[name]["Handler"]],
        env={**variables, "LAMBDA_TASK_ROOT": str(asset), "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        check=True,
        text=True,
    )
    path, *arguments = started.stdout.splitlines()
    assert path.split(":") == [str(asset), "/opt/python"]
    assert arguments[:3] == ["-m", "uvicorn", variables["SPASS_APP"]]
    port = variables["AWS_LWA_PORT"]
    options = ["--host", "127.0.0.1", "--port", port, "--timeout-keep-alive", "900", "--no-access-log", "--log-level", "warning"]
    assert arguments[3:] == options
    module, _, attribute = variables["SPASS_APP"].partition(":")
    assert attribute == "app"
    assert attribute in _assigned(asset, module)


@pytest.mark.parametrize("name", HANDLERS)
def test_the_handler_of_a_short_function_or_a_worker_is_in_the_asset(dev: Deployment, asset: Path, name: str) -> None:
    module, _, attribute = dev.functions()[name]["Handler"].rpartition(".")
    assert attribute == "handler"
    assert attribute in _assigned(asset, module)
    for served in filter(None, _variables(dev, name).get("SPASS_ROUTES", "").split(",")):
        assert "router" in _assigned(asset, served)
