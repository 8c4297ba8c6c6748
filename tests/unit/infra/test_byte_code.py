"""The byte code of a bundle, in which the methods of dataclasses are written out, runs as the sources do."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from infra.interpreter import find_interpreter
from tests.unit.infra.compiling import ROOT, copy_sources, layer_packages, write_byte_code
from tests.unit.infra.dataclass_cases import CASES, KEPT

REPORT: Final = Path(__file__).with_name("dataclass_report.py")
RUNNING: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
INTERPRETERS: Final[Mapping[str, Path]] = {
    version: path
    for version in (RUNNING, "3.13")
    if (path := Path(sys.executable) if version == RUNNING else find_interpreter(version))
}
"""The running interpreter, which has our packages, and Lambda's, if this machine has it, which has none."""
IMPORTED_ELSEWHERE: Final = {"spass.sandbox.foreign.openhands_runner"}
FOR_OTHER_PROGRAMS: Final = ("anyio._backends._trio", "urllib3.contrib.emscripten")  # they import what the layer does not have
_EXPANDABLE: Final = re.compile(r"^@(dataclasses\.)?dataclass\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler printed for a folder of sources, and the reports on the sources and on their byte code."""

    printed: list[str]
    expected: dict[str, Any]
    found: dict[str, Any]


def report(path: Path, modules: list[str], interpreter: Path) -> dict[str, Any]:
    """Return the report of the modules in the folder ``path``."""
    stand_ins = [] if str(interpreter) == sys.executable else ["--stand-ins"]
    environment = {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    command: list[str | Path] = [interpreter, "-s", REPORT, *stand_ins, *modules]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compile_and_compare(folder: Path, modules: list[str], interpreter: Path, *, reads_sources: bool = False) -> Compiled:
    """Compile the sources in ``folder / 'sources'`` in a copy of them, whose sources then end the process if they are used.

    ``reads_sources``: a module reads the source of itself, so they stay as they are.
    """
    sources, bundle = folder / "sources", folder / "bundle"
    shutil.copytree(sources, bundle)
    printed = write_byte_code(bundle, interpreter)
    for file in [] if reads_sources else bundle.rglob("*.py"):
        file.write_text("raise SystemExit('the byte code was not used')")
    return Compiled(printed.splitlines(), report(sources, modules, interpreter), report(bundle, modules, interpreter))


def differences(compiled: Compiled) -> dict[str, Any]:
    """Return what differs between the sources and the byte code: each aspect of a class, expected and found."""
    pairs = [(name, compiled.expected["classes"][name], compiled.found["classes"][name]) for name in compiled.expected["classes"]]
    return {
        f"{name} {aspect}": (expected[aspect], found[aspect])
        for name, expected, found in pairs
        for aspect in expected.keys() - {"is written out"}
        if expected[aspect] != found[aspect]
    }


@pytest.fixture(scope="module", params=INTERPRETERS)
def interpreter(request: pytest.FixtureRequest) -> Path:
    return INTERPRETERS[request.param]


@pytest.fixture(scope="module")
def cases(interpreter: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "sources" / "cases").mkdir(parents=True)
    for name, source in CASES.items():
        (folder / "sources" / "cases" / f"{name}.py").write_text(source)
    return compile_and_compare(folder, [f"cases.{name}" for name in CASES], interpreter)


@pytest.fixture(scope="module")
def library(interpreter: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("library")
    for source in (ROOT / "shared" / "spass", ROOT / "functions"):
        shutil.copytree(source, folder / "sources" / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    files = [file for file in (folder / "sources").rglob("*.py") if _EXPANDABLE.search(file.read_text())]
    names = {".".join(file.relative_to(folder / "sources").with_suffix("").parts).removesuffix(".__init__") for file in files}
    return compile_and_compare(folder, sorted(names - IMPORTED_ELSEWHERE), interpreter)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("packages")
    found: set[str] = set()
    for package in layer_packages():
        files = [file for file in package.files or () if file.suffix == ".py" and _EXPANDABLE.search(file.read_text())]
        names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files if "tests" not in file.parts}
        if used := {name for name in names if not name.startswith(FOR_OTHER_PROGRAMS)}:
            copy_sources(package, folder / "sources")
            found |= used
    return compile_and_compare(folder, sorted(found), Path(sys.executable), reads_sources=True)


def test_every_dataclass_of_a_package_is_as_dataclasses_builds_it(packages: Compiled) -> None:
    assert differences(packages) == {}
    assert packages.found["classes"].keys() == packages.expected["classes"].keys()


def test_most_dataclasses_of_packages_are_written_out(packages: Compiled) -> None:
    kept = {name for name, one in packages.found["classes"].items() if not one["is written out"]}
    named = {line.removeprefix("keeps its decorator: ").split(": ", 1)[0] for line in packages.printed}
    assert len(packages.found["classes"]) > 80
    assert len(kept) < len(packages.found["classes"]) / 3
    assert kept <= named, "a line says why"


def test_every_dataclass_of_the_code_is_as_dataclasses_builds_it(library: Compiled) -> None:
    decorated = [
        _EXPANDABLE.findall(file.read_text())
        for source in ("shared/spass", "functions")
        for file in (ROOT / source).rglob("*.py")
    ]
    assert len(library.expected["classes"]) == sum(map(len, decorated)) > 300
    assert differences(library) == {}


def test_no_dataclass_of_the_library_keeps_its_decorator(library: Compiled) -> None:
    assert library.printed == []
    assert [name for name, one in library.found["classes"].items() if not one["is written out"]] == []
    assert [name for name, one in library.expected["classes"].items() if one["is written out"] and one["signature"]] == []


def test_every_special_case_is_as_dataclasses_builds_it(cases: Compiled) -> None:
    assert differences(cases) == {}
    assert cases.found["classes"].keys() == cases.expected["classes"].keys()


def test_objects_of_written_out_classes_do_what_others_do(cases: Compiled) -> None:
    assert cases.found["outcomes"] == cases.expected["outcomes"]
    assert not [one for one in cases.expected["outcomes"].values() if "Error: " in one]


def test_a_class_that_the_source_leaves_open_keeps_its_decorator_and_is_named(cases: Compiled) -> None:
    assert dict(line.removeprefix("keeps its decorator: ").split(": ", 1) for line in cases.printed) == KEPT
    kept = {name for name, one in cases.found["classes"].items() if not one["is written out"]}
    assert kept == KEPT.keys() - {"cases.kept.Nested", "cases.kept.Local"}


def write(folder: Path, name: str, source: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(source)


def run(folder: Path, program: str, interpreter: Path) -> Any:
    """Run the program with the modules of the folder, without their sources, and return the JSON that it prints."""
    for file in folder.glob("*.py"):
        file.write_text("raise SystemExit('the byte code was not used')")
    command: list[str | Path] = [interpreter, "-s", "-c", f"import json, sys; sys.path.insert(0, sys.argv[1])\n{program}", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LINES: Final = '''"""A module."""
from __future__ import annotations

import sys
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Broken:
    """Fails."""

    a: int
    b: list[int] = field(default_factory=lambda: 1 / 0)

    def fail(self):
        raise ValueError


def line(action):
    try:
        action()
    except Exception:
        step = sys.exc_info()[2].tb_next
        return [(step.tb_lineno, step.tb_frame.f_code.co_name) for step in (step, step.tb_next) if step]
    return action.__code__.co_firstlineno
'''


def test_tracebacks_show_the_lines_of_the_source(interpreter: Path, tmp_path: Path) -> None:
    write(tmp_path / "bundle", "lines", LINES)
    assert write_byte_code(tmp_path / "bundle", interpreter) == ""
    program = """
import lines
from functools import partial
fields = type(vars(lines.Broken)["__dataclass_fields__"]).__name__
steps = [lines.line(partial(lines.Broken, 1)), lines.line(lines.Broken(1, []).fail)]
print(json.dumps([lines.__doc__, fields, lines.Broken.fail.__code__.co_firstlineno, lines.line.__code__.co_firstlineno, steps]))
"""
    doc, fields, method, function, steps = run(tmp_path / "bundle", program, interpreter)
    assert (doc, method, function) == ("A module.", 15, 19)
    assert steps == [[[9, "__init__"], [13, "<lambda>"]], [[16, "fail"]]]
    assert fields == "Fields", "they are built when they are first used"


def test_a_class_with_slots_is_made_once(interpreter: Path, tmp_path: Path) -> None:
    """``dataclasses`` makes it twice, so that ``super()`` in a method does not find the class that is used."""
    source = """
from dataclasses import dataclass
class Base:
    __slots__ = ()
    def twice(self): return 2 * self.a
@dataclass(frozen=True, slots=True)
class Derived(Base):
    a: int
    def twice(self): return super().twice() + (__class__ is type(self))
"""
    write(tmp_path / "bundle", "derived", source)
    assert write_byte_code(tmp_path / "bundle", interpreter) == ""
    program = "import derived; print(json.dumps([derived.Derived(2).twice(), len(derived.Base.__subclasses__())]))"
    assert run(tmp_path / "bundle", program, interpreter) == [5, 1]


def test_threads_that_read_the_fields_first_get_the_same_ones(interpreter: Path, tmp_path: Path) -> None:
    source = "from dataclasses import dataclass\n@dataclass\nclass Base:\n    a: int\n"
    source += "@dataclass\nclass Derived(Base):\n    b: int = 2\n"
    write(tmp_path / "bundle", "shared", source)
    write_byte_code(tmp_path / "bundle", interpreter)
    program = """
import dataclasses, shared, threading
from concurrent.futures import ThreadPoolExecutor
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(16)
def read(_):
    barrier.wait()
    return shared.Derived.__dataclass_fields__
with ThreadPoolExecutor(16) as pool:
    found = list(pool.map(read, range(16)))
print(json.dumps([list(found[0]), len({id(one) for one in found})]))
"""
    assert run(tmp_path / "bundle", program, interpreter) == [["a", "b"], 1]


def test_the_same_sources_give_the_same_bytes(interpreter: Path, tmp_path: Path) -> None:
    for number in (0, 1):
        for name, source in CASES.items():
            (tmp_path / str(number) / "cases").mkdir(parents=True, exist_ok=True)
            write(tmp_path / str(number) / "cases", name, source)
        write_byte_code(tmp_path / str(number), interpreter, PYTHONHASHSEED=str(number))
    first, second = ({file.name: file.read_bytes() for file in (tmp_path / name).rglob("*.pyc")} for name in ("0", "1"))
    assert first == second
    assert len(first) == len(CASES) + 1


def test_a_module_that_python_cannot_read_fails_with_its_name(tmp_path: Path) -> None:
    write(tmp_path / "bundle", "wrong", "def wrong(:\n")
    with pytest.raises(AssertionError, match=r"wrong\.py: invalid syntax"):
        write_byte_code(tmp_path / "bundle", Path(sys.executable))
