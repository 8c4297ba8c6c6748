"""`pip install .` gives a working client and command, with no package of the gateway."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.sdk.fake_gateway import answer_ask, fake_gateway
from tests.unit.sdk.test_imports import GATEWAY_ONLY

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the checkout into a new folder, without an index. The test's environment has what builds it."""
    folder = tmp_path_factory.mktemp("installed")
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(folder),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(ROOT)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, *command: str, url: str = "http://127.0.0.1:9") -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "SPASS_URL": url}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_command_answers(installed: Path) -> None:
    command = str(installed / "bin" / "spass")
    assert run(installed, command, "--help").startswith("usage: spass")
    with fake_gateway(answer_ask) as gateway:
        assert run(installed, command, "ask", "What is 1791 * 17?", url=gateway.url) == "It is 30447.\n"


def test_the_installed_package_is_used_and_needs_no_package_of_the_gateway(installed: Path) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({GATEWAY_ONLY!r}))
from spass import Spass
with Spass() as spass:
    print(sys.modules["spass"].__file__, spass.ask("Hello"))
"""
    with fake_gateway(answer_ask) as gateway:
        assert run(installed, sys.executable, "-c", code, url=gateway.url) == f"{installed}/spass/__init__.py It is 30447.\n"


def test_the_dependencies_are_those_of_the_client(installed: Path) -> None:
    (metadata,) = installed.glob("spass_gateway-*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    needed = [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert [name.partition(">")[0] for name in needed] == ["httpx", "pydantic"]


def test_the_environment_that_make_prepares_finds_the_library_of_its_checkout(tmp_path: Path) -> None:
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=60)
    stamp = environment / "library.stamp"
    variables = os.environ | {"MAKEFLAGS": ""}
    subprocess.run(
        ["make", f"VENV={environment}", str(stamp)], cwd=ROOT, env=variables, check=True, capture_output=True, timeout=60
    )
    code = "import spass; print(spass.__file__)"
    found = subprocess.run(
        [environment / "bin" / "python", "-c", code],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()).resolve() == ROOT / "shared" / "spass" / "__init__.py"
