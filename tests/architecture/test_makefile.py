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
    command = ["make", "--silent", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, text=True)


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["run", "test", "synth", "page", "node"])
def test_a_python_that_is_too_old_is_named_and_no_environment_is_made(checkout: Path, tmp_path: Path, target: str) -> None:
    old = program(tmp_path / "python3.10", "#!/bin/sh\nexit 1\n")
    result = make(checkout, target, f"PYTHON={old}")
    first, *_ = result.stderr.splitlines()
    assert result.returncode == 2
    assert first.startswith(f"{old} is too old: Spass needs Python 3.11 or newer. Set another path: make run PYTHON=")
    assert not [*checkout.glob(".venv*")]


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
