"""Byte code of ``infra.byte_code`` for tests, and sources of the installed packages that the runtime layer has."""

import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

from infra.bundling import LAMBDA, requirements_for

ROOT: Final = Path(__file__).parents[3]
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def write_byte_code(folder: Path, interpreter: Path, **environment: str) -> str:
    """Compile the modules of the folder with the interpreter, and return what the compiler prints."""
    command = [interpreter, "-E" if not environment else "-B", "-s", "-m", "infra.byte_code", folder]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def layer_packages() -> list[metadata.Distribution]:
    """Return the packages of the runtime layer, as they are installed for the running interpreter."""
    lines = requirements_for(LAMBDA, (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8"))
    names = [found.group() for line in lines if (found := _NAME.match(line))]
    installed = {one.name: one for one in metadata.distributions()}
    return [installed[name] for name in names if name in installed]


def copy_sources(package: metadata.Distribution, folder: Path) -> None:
    """Copy the Python files of a package, except its tests."""
    for file in package.files or ():
        if file.suffix == ".py" and not {"tests", ".."} & {*file.parts}:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)
