"""The bundles themselves, built as a deployment builds them: their byte code, and the packages of the layer.

They are built for Lambda's Python where this machine has one. Elsewhere they are built for the Python that runs the tests,
which the tests ask for by its version: the same recipes run, with another interpreter.
"""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import pytest
from aws_cdk import App, Stack

from infra import bundling
from infra.application import TenantMissing, require_tenant
from infra.bundling import LAMBDA, BundlingFailed, Target
from infra.config_files import ROOT
from infra.constructs.layer import EXCLUDED, SOURCES, START_SCRIPT, Layers, function_code
from infra.environments import DEV, ENVIRONMENTS, PROD, STAGING
from infra.interpreter import find_interpreter
from infra.unused_files import UNUSED_IN_NUMPY

IMPORTS: Final = ROOT / "tests" / "infra" / "imports.py"
CHILD: Final = "spass.tools.editor.child"
# Other interpreters run these, with packages of their own. No deployed function runs the second.
ELSEWHERE: Final = (CHILD, "spass.sandbox.foreign.openhands_runner")
AARCH64: Final = 183  # e_machine in the header of an ELF file
MODEL_BYTES: Final = 91_334_623  # of the model layer, whose recipe checks the SHA-256 of the weights
ADAPTER_BYTES: Final = 15_000_000  # the web adapter, which AWS builds, with a reserve
MAX_BYTES: Final = 225_000_000  # Lambda allows 262,144,000
UNCHECKED_HASH: Final = 0b01  # PEP 552: bit 0 says hash instead of time, bit 1 says compare it with the source
# Lambda's Python 3.13 reads the byte code of every released 3.13, and nothing else.
MAGIC_OF_3_13: Final = (3571).to_bytes(2, "little") + b"\r\n"
# Imports that no import statement shows.
NAMED: Final = [
    ("zoneinfo", "tzdata"),  # the standard library reads time zones from it
    # uvicorn names these by strings.
    ("uvicorn.config", "uvicorn.lifespan.on"),
    ("uvicorn.config", "uvicorn.loops.auto"),
    ("uvicorn.config", "uvicorn.protocols.http.auto"),
    ("uvicorn.config", "uvicorn.protocols.websockets.auto"),
]


@dataclass(frozen=True, slots=True)
class Bundles:
    """Function code and the layers of packages, the Python they are for and the interpreter that compiled them."""

    target: Target
    compiler: Path
    code: Path
    runtime: Path
    editor: Path

    def modules(self) -> list[Path]:
        return [file for folder in (self.code, self.runtime, self.editor) for file in folder.rglob("*.py")]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    folder = tmp_path_factory.mktemp("bundles")
    target, compiler = LAMBDA, find_interpreter(LAMBDA.python)
    if compiler is None:
        target = replace(LAMBDA, python=f"{sys.version_info.major}.{sys.version_info.minor}")
        compiler = Path(sys.executable)
    built = Bundles(target, compiler, folder / "code", folder / "runtime", folder / "editor")
    bundling.function_code(built.code, sources=SOURCES, excluded=EXCLUDED, start_script=START_SCRIPT, compiler=compiler)
    bundling.runtime_layer(built.runtime, ROOT / "requirements" / "runtime.txt", compiler=compiler, target=target)
    bundling.editor_layer(built.editor, ROOT / "requirements" / "editor.txt", compiler=compiler, target=target)
    return built


@pytest.fixture
def no_other_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Hide every interpreter of this machine. The folder returned is the home and the only one on the PATH."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PYENV_ROOT", "XDG_DATA_HOME", "UV_PYTHON_INSTALL_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(_interpreter(tmp_path / "running", "3.10")))
    find_interpreter.cache_clear()
    yield tmp_path
    find_interpreter.cache_clear()


def _interpreter(place: Path, version: str, *, implementation: str = "cpython", level: str = "final") -> Path:
    """Write a program that reports itself as a Python of this version."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\necho {implementation} {version} {level}\n")
    place.chmod(0o755)
    return place


def test_every_module_has_unchecked_byte_code(bundles: Bundles) -> None:
    modules = bundles.modules()
    assert {"health.py", "clients.py", "applications.py"} <= {module.name for module in modules}
    magic = MAGIC_OF_3_13 if bundles.target is LAMBDA else _magic(bundles.compiler)
    tag = f"cpython-{bundles.target.python.replace('.', '')}"
    for module in modules:
        header = (module.parent / "__pycache__" / f"{module.stem}.{tag}.pyc").read_bytes()[:8]
        assert header == magic + UNCHECKED_HASH.to_bytes(4, "little"), module


def _magic(interpreter: Path) -> bytes:
    command = [str(interpreter), "-c", "import importlib.util; print(importlib.util.MAGIC_NUMBER.hex())"]
    return bytes.fromhex(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_the_packed_byte_code_runs_on_a_read_only_disk(bundles: Bundles, tmp_path: Path) -> None:
    with ZipFile(tmp_path / "asset.zip", "w") as archive:
        for file in bundles.code.rglob("*"):
            # A source that ends the process when it is compiled and run shows that it was not.
            content = b"raise SystemExit(1)" if file.suffix == ".py" else file.read_bytes() if file.is_file() else b""
            archive.writestr(file.relative_to(bundles.code).as_posix() + "/" * file.is_dir(), content)
    task = tmp_path / "task"
    with ZipFile(tmp_path / "asset.zip") as archive:
        archive.extractall(task)
    for path in [task, *task.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    program = "import sys; sys.path.insert(0, sys.argv[1]); from spass.core.ids import new_id; print(new_id('req'))"
    process = subprocess.run([str(bundles.compiler), "-I", "-c", program, str(task)], check=False, capture_output=True, text=True)
    for path in [task, *task.rglob("*")]:
        path.chmod(0o755)
    assert (process.returncode, process.stdout[:4]) == (0, "req_"), process.stderr


def test_a_module_that_does_not_compile_fails_the_bundle(bundles: Bundles, tmp_path: Path) -> None:
    source = tmp_path / "functions"
    source.mkdir()
    (source / "right.py").write_text("right = True\n")
    (source / "wrong.py").write_text("def wrong(:\n")
    with pytest.raises(BundlingFailed, match=r"wrong\.py"):
        bundling.function_code(
            tmp_path / "output", sources=[source], excluded=EXCLUDED, start_script=START_SCRIPT, compiler=bundles.compiler
        )


def test_synthesis_without_the_right_interpreter_fails_with_advice(
    no_other_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPASS_CONFIG", str(_with_tenant(tmp_path)))
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
    for part in ("Python 3.13", "uv python install 3.13", "pyenv install 3.13", "-c bytecode=none"):
        assert part in str(stopped.value)


def _with_tenant(folder: Path) -> Path:
    """Write the shipped file with a tenant, and return its path."""
    file = folder / "operators.yaml"
    file.write_text(
        (ROOT / "gateway.yaml").read_text().partition("\ntenants:")[0]
        + "\ntenants: [{id: acme, tokens: [{id: t, sha256: "
        + "0" * 64
        + "}]}]\n"
    )
    return file


def test_prod_is_not_synthesised_without_a_tenant(tmp_path: Path) -> None:
    reason = (
        r"gateway\.yaml has no tenant with a token, so a gateway in prod would refuse every request\. "
        r".* make synth ARGS='-c env=dev'"
    )
    with pytest.raises(SystemExit, match=reason):
        runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
    with pytest.raises(TenantMissing, match=reason):
        require_tenant([PROD], ROOT / "gateway.yaml")
    without_token = tmp_path / "without_token.yaml"
    without_token.write_text("tenants: [{id: acme}]\n")
    with pytest.raises(TenantMissing, match=r"without_token\.yaml has no tenant with a token"):
        require_tenant([PROD], without_token)
    require_tenant([DEV, STAGING], ROOT / "gateway.yaml")
    require_tenant(ENVIRONMENTS.values(), _with_tenant(tmp_path))


@pytest.mark.parametrize("followers", [0, 1])
def test_followers_that_leave_a_function_no_concurrency_are_refused(followers: int) -> None:
    with pytest.raises(ValueError, match=r"followers\n.*greater than or equal to 2"):
        replace(DEV, followers=followers)
    shared = replace(DEV, followers=2)
    assert (shared.followers_of("streams.get"), shared.followers_of("managed.run_stream")) == (1, 1)


def test_byte_code_is_omitted_only_on_request(no_other_python: Path, tmp_path: Path) -> None:
    stack = Stack(App(analytics_reporting=False, outdir=str(tmp_path / "output"), context={"bytecode": "none"}), "Bare")
    function_code(stack).bind(stack)
    assert list((tmp_path / "output").rglob("*.py"))
    assert not list((tmp_path / "output").rglob("*.pyc"))
    misspelt_stack = Stack(App(analytics_reporting=False, context={"bytecode": "no"}), "Bare")
    with pytest.raises(BundlingFailed, match="the only value is 'none'"):
        function_code(misspelt_stack)


def test_bundles_with_and_without_byte_code_are_different_assets(tmp_path: Path) -> None:
    hashes = {
        _runtime_asset(tmp_path / name, {"bytecode": value} if value else {}) for name, value in (("a", None), ("b", "none"))
    }
    assert len(hashes) == 2


def _runtime_asset(folder: Path, context: dict[str, Any]) -> str:
    app = App(analytics_reporting=False, outdir=str(folder), context={"aws:cdk:bundling-stacks": [], **context})
    stack = Stack(app, "Bare")
    Layers(stack, "Layers", region="eu-central-1")
    resources = app.synth().get_stack_by_name("Bare").template["Resources"]
    (layer,) = [one for name, one in resources.items() if name.startswith("LayersRuntime")]
    return json.dumps(layer["Properties"]["Content"])


def test_synthesis_without_bundling_needs_no_interpreter(no_other_python: Path, tmp_path: Path) -> None:
    stack = Stack(App(analytics_reporting=False, outdir=str(tmp_path / "out"), context={"aws:cdk:bundling-stacks": []}), "Bare")
    function_code(stack).bind(stack)


@pytest.mark.parametrize(
    "place",
    [
        "python3.13",
        "python3",
        "python",
        ".pyenv/versions/3.13.0/bin/python3.13",
        ".local/share/uv/python/cpython-3.13.2-linux-x86_64-gnu/bin/python3.13",
    ],
)
def test_an_interpreter_of_the_right_version_is_found(no_other_python: Path, place: str) -> None:
    expected = _interpreter(no_other_python / place, "3.13")
    assert find_interpreter("3.13") == expected


def test_the_running_interpreter_is_found_outside_the_path(no_other_python: Path) -> None:
    assert find_interpreter("3.10") == Path(sys.executable)


@pytest.mark.parametrize(
    ("version", "implementation", "level"),
    [("3.12", "cpython", "final"), ("3.13", "pypy", "final"), ("3.13", "cpython", "beta")],
)
def test_an_interpreter_with_other_byte_code_is_not_used(
    no_other_python: Path, version: str, implementation: str, level: str
) -> None:
    _interpreter(no_other_python / "python3.13", version, implementation=implementation, level=level)
    assert find_interpreter("3.13") is None


def test_a_program_on_the_path_that_fails_is_skipped(no_other_python: Path) -> None:
    stand_in = no_other_python / "python3.13"
    stand_in.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    stand_in.chmod(0o755)
    behind = _interpreter(no_other_python / ".pyenv/versions/3.13.0/bin/python3.13", "3.13")
    assert find_interpreter("3.13") == behind


@pytest.fixture(scope="module")
def imports(bundles: Bundles) -> dict[str, dict[str, str]]:
    """Return the modules of the bundles that the functions import, and the missing ones."""
    own = [".".join(file.relative_to(bundles.code).with_suffix("").parts) for file in bundles.code.rglob("*.py")]
    request = {
        "path": [str(bundles.code), str(bundles.runtime / "python")],
        "roots": [*(name for name in own if not name.startswith(ELSEWHERE)), "uvicorn.__main__"],  # run.sh starts uvicorn
        "own": [source.name for source in SOURCES],
        "named": NAMED,
    }
    command = [str(bundles.compiler), "-W", "ignore", str(IMPORTS)]
    process = subprocess.run(command, input=json.dumps(request), check=True, capture_output=True, text=True)
    found: dict[str, dict[str, str]] = json.loads(process.stdout)
    return found


def test_every_package_of_the_layer_is_imported_by_a_function(bundles: Bundles, imports: dict[str, dict[str, str]]) -> None:
    distributions = list((bundles.runtime / "python").glob("*.dist-info"))
    assert len(distributions) > 20
    reached = {module.split(".")[0] for module in imports["reached"]}
    unused = [one.name for one in distributions if not _top_level(one) & reached]
    assert unused == []


def _top_level(distribution: Path) -> set[str]:
    """Return the names under which a distribution is imported."""
    files = [line.split(",")[0] for line in (distribution / "RECORD").read_text(encoding="utf-8").splitlines()]
    return {re.split(r"[/.]", file)[0] for file in files if not file.startswith(("..", distribution.name))}


def test_packages_for_tests_and_for_foreign_agents_are_not_deployed(bundles: Bundles) -> None:
    deployed = [file.relative_to(bundles.code).parts for file in bundles.code.rglob("*.py")]
    for folder in EXCLUDED:
        assert folder.is_dir()
        assert not [parts for parts in deployed if folder.name in parts]
    assert not [parts for parts in deployed if parts[-1].endswith("_runner.py")]


def test_the_layer_contains_every_package_that_a_function_imports(imports: dict[str, dict[str, str]]) -> None:
    assert imports["missing"] == {}


def test_no_function_uses_a_part_of_numpy_that_is_left_out(imports: dict[str, dict[str, str]]) -> None:
    used = imports["numpy"]
    assert {"linalg", "ma", "float32"} <= used.keys()
    assert {part: used[part] for part in UNUSED_IN_NUMPY if part in used} == {}


def test_layers_hold_machine_code_for_arm64_alone(bundles: Bundles) -> None:
    libraries = [file for folder in (bundles.runtime, bundles.editor) for file in folder.rglob("*.so*")]
    assert len(libraries) > 5
    assert {int.from_bytes(file.read_bytes()[18:20], "little") for file in libraries} == {AARCH64}


def test_the_layers_of_a_function_fit_into_lambda(bundles: Bundles) -> None:
    packages = [bundles.code, bundles.runtime, bundles.editor]
    sizes = [sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in packages]
    assert sizes[2] < 30 * 2**20
    assert sum(sizes) + MODEL_BYTES + ADAPTER_BYTES <= MAX_BYTES, sizes


def test_only_the_editors_child_process_finds_the_editors_packages(bundles: Bundles) -> None:
    assert [folder.name for folder in bundles.editor.iterdir()] == ["editor"]
    assert (bundles.editor / "editor" / "aider").is_dir()
    assert not (bundles.runtime / "python" / "aider").exists()


def test_the_editors_child_process_starts_with_its_packages_alone(bundles: Bundles, tmp_path: Path) -> None:
    """They are all pure Python, so this machine's interpreter runs what Lambda's does."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; from spass.tools.editor.child import stand_ins; stand_ins.install(); "
        "import spass.tools.editor.child.engine; "
        "print(sorted({m.__file__.split('/')[-3] for m in [sys.modules['aider'], sys.modules['rich']]}))"
    )
    command = [str(bundles.compiler), "-I", "-W", "ignore", "-c", program, str(bundles.code), str(bundles.editor / "editor")]
    environment = {"HOME": str(tmp_path)}
    process = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, "['editor']\n"), process.stderr


def test_every_package_of_the_editor_is_imported_by_its_child_process(bundles: Bundles) -> None:
    roots = [".".join(file.relative_to(bundles.code).with_suffix("").parts) for file in bundles.code.rglob("*.py")]
    request = {
        "path": [str(bundles.code), str(bundles.editor / "editor")],
        "roots": [root for root in roots if root.startswith(CHILD)],
        "own": ["spass"],
        "named": [],
    }
    command = [str(bundles.compiler), "-W", "ignore", str(IMPORTS)]
    process = subprocess.run(command, input=json.dumps(request), check=True, capture_output=True, text=True)
    reached = {module.split(".")[0] for module in json.loads(process.stdout)["reached"]}
    distributions = list((bundles.editor / "editor").glob("*.dist-info"))
    assert len(distributions) > 10
    assert [one.name for one in distributions if not _top_level(one) & reached] == []


def test_reading_imports_finds_lazy_ones_and_skips_those_for_type_checkers(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import json\n"
        "if TYPE_CHECKING:\n    import stubs\n"
        "import numpy as np\n"
        "from numpy.fft import fft\n"
        "def work():\n    import lazy\n    import absent\n    np.random.seed(other.testing)\n"
    )
    (tmp_path / "lazy.py").write_text("try:\n    import optional\nexcept ImportError:\n    import instead\nimport needed.part\n")
    (tmp_path / "instead.py").write_text("def later():\n    import never\n")
    request = {"path": [str(tmp_path)], "roots": ["ours"], "own": ["ours"], "named": []}
    command = [sys.executable, str(IMPORTS)]
    process = subprocess.run(command, input=json.dumps(request), check=True, capture_output=True, text=True)
    assert json.loads(process.stdout) == {
        "reached": {"ours": "the program", "lazy": "ours", "instead": "lazy"},
        "missing": {"absent": "ours", "needed": "lazy", "numpy": "ours"},
        "numpy": {"fft": "ours", "random": "ours"},
    }
