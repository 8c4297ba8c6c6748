"""Containers for real, of docker or podman. Without a runtime that works, these tests fail."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local.sandbox_image import add_programs, build, find_runtime, import_image

_SHELL_PROGRAMS = ("sh", "cat", "sleep", "env", "touch")
_TEST_IMAGES = f"spass-test-shell-{os.getpid()}"
"""The name of this process's images: another may still need its own when this one ends."""


@pytest.fixture(scope="session")
def runtime() -> str:
    name = find_runtime(os.environ.get("RUNTIME", ""))
    if name is None:
        pytest.fail("These tests need docker or podman. On Debian: apt-get install podman runc, and see .ci/run.")
    return name


@pytest.fixture(scope="session")
def image(runtime: str) -> str:
    """The image ``spass-sandbox`` of this code."""
    return build(runtime)


@pytest.fixture
def shell_image(runtime: str, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that makes an image of one shell script."""

    def make(script: str) -> str:
        root = tmp_path / "root"
        shutil.rmtree(root, ignore_errors=True)
        programs = [Path(path).resolve() for name in _SHELL_PROGRAMS if (path := shutil.which(name))]
        add_programs(root, programs)
        (root / "bin").mkdir(exist_ok=True)
        for name, program in zip(_SHELL_PROGRAMS, programs, strict=True):
            if not (root / "bin" / name).exists():
                (root / "bin" / name).symlink_to(program)
        (root / "start").write_text(f"#!/bin/sh\n{script}\n")
        (root / "start").chmod(0o755)
        name = f"{_TEST_IMAGES}:{abs(hash(script))}"
        import_image(runtime, Path(shutil.make_archive(str(tmp_path / "image"), "tar", root)), name, ["/start"])
        return name

    return make


@pytest.fixture(autouse=True)
def _leaves_no_container(runtime: str) -> Iterator[None]:
    yield
    assert containers(runtime) == []


@pytest.fixture(scope="session", autouse=True)
def _remove_test_images(runtime: str) -> Iterator[None]:
    yield
    listed = subprocess.run(
        [runtime, "images", "--format", "{{.Repository}}:{{.Tag}}"], capture_output=True, text=True, check=True
    )
    if names := [name for name in listed.stdout.split() if f"{_TEST_IMAGES}:" in name]:
        subprocess.run([runtime, "rmi", "-f", *names], capture_output=True, check=True)


def containers(runtime: str, process: int | None = None) -> list[str]:
    """Return the names of the containers of a process, by default this one, also of stopped ones."""
    command = [runtime, "ps", "-a", "--filter", "name=^spass-", "--format", "{{.Names}}"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if name.split("-")[2] == str(process or os.getpid())]
