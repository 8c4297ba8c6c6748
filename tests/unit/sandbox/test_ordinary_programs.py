"""Ordinary programs that use the standard library work in the confined child, on every interpreter that is found."""

import json
import subprocess
from typing import Final

import pytest

from tests.child_harness import CellOf, Report, Turn
from tests.interpreters import INTERPRETERS

PROGRAMS: Final = {
    "text and numbers": "import json, re, math, fractions, decimal, statistics\nprint(json.dumps({'a': math.comb(5, 2)}))",
    "times": """
import datetime, zoneinfo
print(datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).utcoffset())
""",
    "hashes": """
import bz2, hashlib, hmac, lzma, secrets, uuid, zlib
print(hashlib.sha256(b"").hexdigest()[:8], uuid.uuid4().version)
""",
    "a database": """
import sqlite3
with sqlite3.connect("table.db") as database:
    database.execute("create table t (a)")
    database.executemany("insert into t values (?)", [(1,), (2,)])
print(sqlite3.connect("table.db").execute("select sum(a) from t").fetchone())
""",
    "files": """
import pathlib, shutil
pathlib.Path("folder/inner").mkdir(parents=True)
pathlib.Path("folder/a.txt").write_text("text")
shutil.copy("folder/a.txt", "folder/b.txt")
shutil.copy2("folder/a.txt", "folder/inner/c.txt")
shutil.move("folder/b.txt", "folder/inner/b.txt")
pathlib.Path("folder/a.txt").touch()
shutil.copytree("folder", "other")
pathlib.Path("other/a.txt").rename("other/inner/a.txt")
print(sorted(path.name for path in pathlib.Path("other").rglob("*")))
shutil.rmtree("other")
with open("folder/a.txt", "r+") as file:
    file.truncate(2)
print(pathlib.Path("folder/a.txt").read_text(), pathlib.Path("other").exists())
""",
    "temporary files": """
import tempfile
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as named, tempfile.TemporaryFile() as file:
    print(file.write(b"abc"), named.write(b"de"))
""",
    "archives": """
import io, tarfile, zipfile
with zipfile.ZipFile("a.zip", "w") as archive:
    archive.writestr("a.txt", "text")
zipfile.ZipFile("a.zip").extractall("from_zip")
with tarfile.open("a.tar.gz", "w:gz") as archive:
    archive.add("from_zip")
tarfile.open("a.tar.gz").extractall("from_tar", filter="data")
print(open("from_tar/from_zip/a.txt").read())
""",
    "shelves and tables": """
import csv, pickle, shelve, xml.etree.ElementTree
with shelve.open("shelf") as shelf:
    shelf["a"] = [1, 2]
with open("t.csv", "w", newline="") as file:
    csv.writer(file).writerow(["a", "b"])
print(shelve.open("shelf")["a"], next(csv.reader(open("t.csv"))))
""",
    "locks and waits": """
import queue, threading, time
print(threading.Lock().acquire(timeout=0.01), threading.Event().wait(0.01), time.sleep(0.01))
""",
    "what a machine is": """
import mimetypes, os, platform, sys
print(platform.system(), mimetypes.guess_type("a.png")[0], os.cpu_count() > 0, os.path.exists("nothing"))
""",
    "its own source": "import inspect, textwrap\nprint(inspect.getsource(textwrap.dedent).splitlines()[0])",
    "foreign functions": "import ctypes\nprint(ctypes.CDLL(None).abs(-3), ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 4)())",
}
EXPECTED: Final = {
    "text and numbers": '{"a": 10}\n',
    "times": "2:00:00\n",
    "hashes": "e3b0c442 4\n",
    "a database": "(3,)\n",
    "files": "['a.txt', 'b.txt', 'c.txt', 'inner']\nte False\n",
    "temporary files": "3 2\n",
    "archives": "text\n",
    "shelves and tables": "[1, 2] ['a', 'b']\n",
    "locks and waits": "True False None\n",
    "what a machine is": "Linux image/png True False\n",
    "its own source": "def dedent(text):\n",
    "foreign functions": "3 4\n",
}

IMPORTABLE: Final = """
import contextlib, importlib, io, json, sys
missing = []
for name in sorted(sys.stdlib_module_names - {"antigravity", "this", "__main__", "idlelib"}):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(name)
    except ImportError:
        missing.append(name)
print(json.dumps(missing))
"""
HIDDEN: Final = {"_datetime", "_uuid", "_zoneinfo", "nis", "turtledemo", "tkinter", "_tkinter", "turtle"}
"""Modules that the child hides because they read the clock, and those of windows and of a network's name service."""


@pytest.mark.parametrize("version", INTERPRETERS)
def test_ordinary_programs_work(version: str) -> None:
    reports = Turn([CellOf(code) for code in PROGRAMS.values()], interpreter=INTERPRETERS[version]).run_live()
    assert dict(zip(PROGRAMS, reports, strict=False)) == {name: Report(output) for name, output in EXPECTED.items()}


@pytest.mark.parametrize("version", INTERPRETERS)
def test_every_module_of_the_standard_library_can_be_imported(version: str) -> None:
    command = [INTERPRETERS[version], "-s", "-P", "-S", "-X", "utf8", "-W", "ignore", "-c", IMPORTABLE]
    outside = subprocess.run(command, capture_output=True, check=True, env={})
    (inside,) = Turn([CellOf(IMPORTABLE)], interpreter=INTERPRETERS[version]).run_live()
    assert inside.error is None
    assert set(json.loads(inside.output)) - HIDDEN <= set(json.loads(outside.stdout))
