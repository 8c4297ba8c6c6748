"""What the package imports, each in a new interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GATEWAY_ONLY = (
    "boto3",
    "botocore",
    "numpy",
    "simsimd",
    "yaml",
    "fastapi",
    "starlette",
    "uvicorn",
    "mangum",
    "httptools",
    "orjson",
    "tokenizers",
    "dotenv",
)


def run(code: str) -> str:
    """Run a program on the library and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "shared", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_neither_httpx_nor_the_client() -> None:
    assert run("import spass, sys; print([name for name in ('httpx', 'pydantic', 'spass.sdk') if name in sys.modules])") == "[]\n"


def test_the_client_is_imported_at_its_first_use() -> None:
    assert run("import spass, sys; spass.Spass; print('spass.sdk.client' in sys.modules)") == "True\n"
    assert run("import spass; print(hasattr(spass, 'Spas'))") == "False\n"


@pytest.mark.parametrize(
    "statement",
    ["from spass import Spass; Spass().close()", "import spass.cli.chat, spass.cli.listing, spass.cli.ask, spass.cli.managed"],
)
def test_the_client_needs_no_package_of_the_gateway(statement: str) -> None:
    run(f"import sys; sys.modules.update(dict.fromkeys({GATEWAY_ONLY!r})); {statement}")


def test_the_help_imports_neither_httpx_nor_the_client() -> None:
    code = """
import sys
from spass.cli.main import main
try:
    main(["ask", "--help"])
except SystemExit as end:
    assert end.code == 0
print([name for name in ("httpx", "pydantic", "spass.sdk") if name in sys.modules])
"""
    assert run(code).endswith("[]\n")
