"""The assemblies of a rehearsal: which release it begins with, and what differs in the copies that it deploys."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from infra.bundling import Target
from infra.rehearsal.assemblies import FIRST_KEPT, Assemblies, Kept, last_release

PINNED = "fast==1.0 --hash=sha256:00\nplain==2.0 --hash=sha256:01\n"


@pytest.fixture
def assembly(tmp_path: Path) -> Path:
    """Return an assembly for Lambda, with a template, a layer of packages and one of the operator's files."""
    files = {
        "it.template.json": "{}",
        "asset.1/python/fast/code.aarch64.so": "arm",
        "asset.1/python/fast/__init__.py": "source",
        "asset.1/python/fast-1.0.dist-info/WHEEL": "Root-Is-Purelib: false",
        "asset.1/python/plain-2.0.dist-info/WHEEL": "Root-Is-Purelib: true",
        "asset.2/config/gateway.yaml": "the operator's",
        "asset.2/config/agents/theirs.yaml": "the operator's",
    }
    for name, text in files.items():
        path = tmp_path / "assembly" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "assembly"


@pytest.fixture
def assemblies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Assemblies:
    """Return the assemblies of a rehearsal on another processor, for which the packages are in the cache."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    config, home = tmp_path / "config", tmp_path / "home"
    (config / "agents").mkdir(parents=True)
    home.mkdir()
    (config / "gateway.yaml").write_text("the rehearsal's")
    (config / "agents" / "ours.yaml").write_text("the rehearsal's")
    line = f"{Target(python='3.13', machine='x86_64')}fast==1.0 --hash=sha256:00"
    native = tmp_path / "cache" / f"native-{hashlib.sha256(line.encode()).hexdigest()[:12]}" / "fast"
    native.mkdir(parents=True)
    (native / "code.x86_64.so").write_text("intel")
    return Assemblies(cache=tmp_path / "cache", home=home, config=config, log=tmp_path / "log")


def test_a_copy_has_the_packages_of_this_machine(assembly: Path, assemblies: Assemblies) -> None:
    package = assemblies.copy(assembly, "now", PINNED) / "asset.1" / "python" / "fast"
    assert {path.name for path in package.iterdir()} == {"code.x86_64.so", "__init__.py"}
    assert (assembly / "asset.1" / "python" / "fast" / "code.aarch64.so").read_text() == "arm"


def test_a_copy_has_the_files_of_the_rehearsal(assembly: Path, assemblies: Assemblies) -> None:
    config = assemblies.copy(assembly, "now", PINNED) / "asset.2" / "config"
    assert (config / "gateway.yaml").read_text() == "the rehearsal's"
    assert [path.name for path in (config / "agents").iterdir()] == ["ours.yaml"]
    assert (assembly / "asset.2" / "config" / "gateway.yaml").read_text() == "the operator's"


def test_a_later_synthesis_does_not_change_a_copy(assembly: Path, assemblies: Assemblies) -> None:
    copy = assemblies.copy(assembly, "now", PINNED)
    (assembly / "it.template.json").write_text(json.dumps({"Resources": {}}))
    assert (copy / "it.template.json").read_text() == "{}"


def test_the_last_release_is_the_one_deployed_last(tmp_path: Path) -> None:
    assert last_release(tmp_path / "none") == Kept(commit=FIRST_KEPT, archive=None)
    for commit, deployed in (("aaa", 20), ("bbb", 10), ("ccc", 0)):
        (tmp_path / f"{commit}.tar").touch()
        os.utime(tmp_path / f"{commit}.tar", (deployed, deployed))
    (tmp_path / "ddd.tar.deploying").touch()
    assert last_release(tmp_path) == Kept(commit="aaa", archive=tmp_path / "aaa.tar")
