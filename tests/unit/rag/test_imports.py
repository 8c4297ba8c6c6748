"""A module or a route imports numpy and simsimd only when it needs them, because imports slow cold starts."""

import subprocess
import sys

import pytest

_SEARCHES = """
import asyncio, sys
import numpy as np
from spass.rag.index.cache import ObjectCache
from tests.unit.rag.search.exact_index import Question, put_index

async def search(rows):
    vectors = np.random.default_rng(7).standard_normal((rows, 256), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = await put_index(vectors, range(rows), [np.arange(rows)])
    print(f"{rows} rows are put:", "simsimd" in sys.modules)
    everything = np.ones(rows, np.bool_)
    await index.search(index.objects(ObjectCache()), Question(vectors[0], 3, ~everything, everything))
    print(f"{rows} rows are searched:", "simsimd" in sys.modules)

for rows in (50, 4096):
    asyncio.run(search(rows))
"""

_IMPORTS = """
import importlib, pkgutil, sys
import spass.rag
from infra.routes import ROUTES
names = [module.name for module in pkgutil.walk_packages(spass.rag.__path__, "spass.rag.")]
names += [f"functions.{route.module}" for route in ROUTES if route.module.startswith(("rag.", "models."))]
for name in names:
    importlib.import_module(name)
    if "simsimd" in sys.modules:
        sys.exit(f"{name} imports simsimd")
print(len(names))
"""


def run(code: str) -> str:
    """Run a program in a new interpreter and return its output."""
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module", ["write.delete", "index.catalog", "index.documents", "search.prompt", "index.responses", "write.swap"]
)
def test_a_module_that_needs_no_numpy_does_not_import_it(module: str) -> None:
    assert run(f"import sys, spass.rag.{module}; print('numpy' in sys.modules)") == "False\n"


def test_no_module_of_retrieval_imports_simsimd_before_a_request() -> None:
    assert int(run(_IMPORTS)) > 50


def test_only_a_search_that_scans_codes_imports_simsimd() -> None:
    """A segment of 50 rows has no codes. Writes make codes without simsimd."""
    assert [line for line in run(_SEARCHES).splitlines() if not line.startswith("{")] == [  # a line of the log
        "50 rows are put: False",
        "50 rows are searched: False",
        "4096 rows are put: False",
        "4096 rows are searched: True",
    ]
