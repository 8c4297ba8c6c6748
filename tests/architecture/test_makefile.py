"""`make` finds a Python that is new enough, makes whole environments, and works in a folder with a blank and an umlaut."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = """\
#!/bin/sh
case "$1" in
  -c) exec python3 "$@" ;;
esac
shift 3
mkdir -p "$1/bin" && touch "$1/bin/python" && {last}
"""
"""Stands in for `python -m venv --clear FOLDER`, which writes the script `activate` last."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with nothing but the Makefile and the pins."""
    folder = tmp_path / "Büro mit Blank"
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for file in ("package.json", "package-lock.json"):
        (folder / file).touch()
    shutil.copyfile(ROOT / "Makefile", folder / "Makefile")
    return folder


def make(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"MAKEFLAGS": "", "MAKELEVEL": ""}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, text=True)


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["run", "test", "synth", "page", "node"])
@pytest.mark.parametrize("name", ["python3.10", "missing"])
def test_a_python_that_is_too_old_or_missing_is_named_and_no_environment_is_made(
    checkout: Path, tmp_path: Path, target: str, name: str
) -> None:
    program(tmp_path / "python3.10", "#!/bin/sh\nexit 1\n")
    python = tmp_path / name
    result = make(checkout, target, f"PYTHON={python}")
    first, *_ = result.stderr.splitlines()
    assert result.returncode == 2
    assert first.startswith(f"{python} is not a Python 3.11 or newer, which Spass needs. Set another path: make run PYTHON=")
    assert not [*checkout.glob(".venv*")]


@pytest.fixture
def environment(checkout: Path) -> Path:
    """Return a made environment, into which nothing is installed yet."""
    folder = checkout / ".venv"
    (folder / "bin").mkdir(parents=True)
    for made in ("bin/activate", "bin/spass", "library.stamp"):
        (folder / made).touch()
    return folder


def test_an_installation_that_fails_says_what_to_check(checkout: Path, environment: Path) -> None:
    program(environment / "bin/python", "#!/bin/sh\nexit 1\n")
    result = make(checkout, ".venv/local.stamp")
    assert "pip could not install what the laptop needs. Check the network and pip's index, and try again." in result.stderr
    assert not (environment / "local.stamp").exists()


@pytest.mark.parametrize("stamp", [".venv/local.stamp", ".venv-editor/editor.stamp"])
def test_an_installation_that_ctrl_c_stops_is_not_explained_as_a_failure(checkout: Path, environment: Path, stamp: str) -> None:
    program(environment / "bin/python", "#!/bin/sh\nkill -INT $PPID\nexit 1\n")
    result = make(checkout, stamp)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1, result.stderr  # make's own line
    assert not (checkout / stamp).exists()


def test_a_start_after_the_first_prints_only_what_the_gateway_prints(checkout: Path) -> None:
    for made in (
        ".venv/local.stamp",
        ".venv/library.stamp",
        ".venv/bin/spass",
        ".venv-editor/editor.stamp",
        "node_modules/.page.stamp",
    ):
        (checkout / made).parent.mkdir(parents=True, exist_ok=True)
        (checkout / made).touch()
    (checkout / ".venv/bin/activate").touch()
    program(checkout / ".venv/bin/python", "#!/bin/sh\necho Spass serves\n")
    result = make(checkout, "run")
    assert (result.returncode, result.stdout, result.stderr) == (0, "Spass serves\n", "")


def test_an_environment_that_was_interrupted_is_made_anew(checkout: Path, tmp_path: Path) -> None:
    interrupted = program(tmp_path / "interrupted", PYTHON.format(last="kill -9 $PPID"))
    assert make(checkout, ".venv/bin/activate", f"PYTHON={interrupted}").returncode != 0
    assert (checkout / ".venv/bin/python").exists()
    whole = program(tmp_path / "whole", PYTHON.format(last='touch "$1/bin/activate"'))
    for _ in range(2):
        assert make(checkout, ".venv/bin/activate", f"PYTHON={whole}").returncode == 0
    assert (checkout / ".venv/bin/activate").exists()


def test_clean_leaves_the_state_and_nothing_that_was_installed_or_built(checkout: Path) -> None:
    before = {path.name for path in checkout.iterdir()} | {".local"}
    for name in (".local", ".venv", ".venv-node", ".cache/npm-killed", ".page", ".page-killed", "node_modules", "cdk.out"):
        (checkout / name).mkdir(parents=True)
    assert make(checkout, "clean").returncode == 0
    assert {path.name for path in checkout.iterdir()} == before


def test_no_command_has_the_folder_outside_quotes(checkout: Path) -> None:
    commands = ""
    for target in ("run", "test", "synth", "cdk", "lock", "check", "screenshots", "page", "clean"):
        result = make(checkout, "--dry-run", target, "PYTHON=python3")
        assert result.returncode == 0, result.stderr
        commands += result.stdout
    assert f'PATH="{checkout}/.venv-infra/bin:' in commands
    assert str(checkout) not in re.sub(r'"[^"]*"', "", commands)
