"""Modules without arithmetic do not import numpy, because the import is slow."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["write.delete", "index.catalog", "index.documents", "search.prompt", "index.answers", "write.swap"]
)
def test_a_module_that_needs_no_numpy_does_not_import_it(module: str) -> None:
    code = f"import sys, spass.rag.{module}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False).returncode == 0
