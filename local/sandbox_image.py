"""Build the image ``spass-sandbox`` from this machine's Python, without a registry: `make sandbox-image`.

The image is one interpreter with its standard library and shared libraries, and the modules of ``spass`` that an agent kind and
the sandbox's child need. They import no packages.
"""

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

from spass.sandbox.runner import DEFAULT_IMAGE

_LIBRARY: Final = Path(__file__).resolve().parent.parent / "shared"
_MODULES: Final = (
    "__init__.py",
    "core",
    "redaction",
    "sandbox",
    "agents/__init__.py",
    "agents/container_main.py",
    "agents/kinds",
)
_PLACE: Final = Path("opt/spass")
_START: Final = "from spass.agents.container_main import main\n\nmain()\n"
_LEFT_OUT: Final = shutil.ignore_patterns(
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3"),
    *("ensurepip", "config-*", "*.a"),
)
_TIME_ZONES: Final = Path("/usr/share/zoneinfo")
_RUNTIMES: Final = ("docker", "podman")
_ONLY_LINUX: Final = (
    "The image contains this machine's Python, so it can be built only on Linux. Build it on such a machine with the same "
    "kind of processor, and copy it: docker save spass-sandbox -o image.tar there, docker load -i image.tar here."
)
_IN_LDD: Final = re.compile(r"(/[^\s()]+)")


def main(arguments: Sequence[str]) -> int:
    """Build the image with the runtime that ``RUNTIME`` or the first argument names, else the first that works."""
    if sys.platform != "linux":
        print(_ONLY_LINUX, file=sys.stderr)
        return 1
    runtime = find_runtime(arguments[0] if arguments else os.environ.get("RUNTIME", ""))
    if runtime is None:
        print("No container runtime works here. Install docker or podman, or set RUNTIME.", file=sys.stderr)
        return 1
    print(f"Built {build(runtime)} with {runtime}.")
    return 0


def build(runtime: str) -> str:
    """Build the image and return its name."""
    with tempfile.TemporaryDirectory(prefix="spass-image-") as folder:
        root = Path(folder, "root")
        python = fill(root)
        archive = shutil.make_archive(str(Path(folder, "image")), "tar", root)
        import_image(runtime, Path(archive), DEFAULT_IMAGE, [str(python), "-B", "-s", "-X", "utf8", f"/{_PLACE}/inside.py"])
    return DEFAULT_IMAGE


def find_runtime(wanted: str) -> str | None:
    """Return the name of a runtime that answers, or None. A client without its daemon does not answer."""
    for name in (wanted,) if wanted else _RUNTIMES:
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return name
    return None


def import_image(runtime: str, archive: Path, name: str, entrypoint: Sequence[str]) -> None:
    """Import a root file system as the image ``name``, which starts ``entrypoint``."""
    change = f"ENTRYPOINT {json.dumps(list(entrypoint))}"
    subprocess.run([runtime, "import", "--change", change, str(archive), name], check=True, capture_output=True)


def fill(root: Path) -> Path:
    """Write the root file system. Return the path of Python in it, which is that of this machine."""
    standard = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    shutil.copytree(standard, _below(root, standard), ignore=_LEFT_OUT, symlinks=True)
    add_programs(root, [python], also=[*standard.rglob("*.so"), *standard.parent.glob("libpython*.so*")])
    if _TIME_ZONES.is_dir():
        shutil.copytree(_TIME_ZONES, _below(root, _TIME_ZONES), symlinks=True, ignore=shutil.ignore_patterns("right", "posix"))
    for module in _MODULES:
        source, target = _LIBRARY / "spass" / module, root / _PLACE / "spass" / module
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_LEFT_OUT)
        else:
            shutil.copy(source, target)
    (root / _PLACE / "inside.py").write_text(_START)
    compileall.compile_dir(root, quiet=2, stripdir=str(root), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    return python


def add_programs(root: Path, programs: Iterable[Path], also: Iterable[Path] = ()) -> None:
    """Copy ``programs`` to the same places in ``root``, and the shared libraries that they and ``also`` need."""
    needed = [*programs]
    libraries = {library for program in (*needed, *also) for library in _libraries(program)}
    for path in (*needed, *sorted(libraries)):
        target = _below(root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for folder in ("tmp", "proc", "sys", "dev", "etc"):
        (root / folder).mkdir(exist_ok=True)
    if ldconfig := shutil.which("ldconfig", path=f"{os.environ['PATH']}:/sbin:/usr/sbin"):
        subprocess.run([ldconfig, "-r", str(root)], check=False, capture_output=True)


def _libraries(program: Path) -> set[Path]:
    """Return the shared libraries of a program, and the loader, by the paths at which they are looked for."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    paths = [match[1] for line in listed.splitlines() if (match := _IN_LDD.search(line.partition("=>")[2] or line))]
    return {Path(path) for path in paths if ".so" in path}


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
