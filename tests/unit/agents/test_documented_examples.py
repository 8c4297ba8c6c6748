"""The tool, the provider, the kinds, the route and the worker of the guides pass the checks of a checkout: one line each.

The checkout is copied, and the files and the lines of the guides are written into the copy, word for word. `make openapi` and
`make template` write what is generated; tests/infra has the deployment of the lines.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
GUIDE: Final = "docs/extending.md"
REGISTRIES: Final = {
    "ToolEntry(": "shared/spass/tools/registry.py",
    "spass.agents.": "shared/spass/agents/kinds/registry.py",
    "ProviderEntry(": "shared/spass/models/provider_registry.py",
    "Route(": "infra/routes.py",
    "Worker(": "infra/workers.py",
}
"""What a documented line contains, and the file to whose table it belongs."""
FILES: Final = {
    "shared/spass/tools/builtin/opening_hours.py",
    "shared/spass/agents/kinds/second_look.py",
    "shared/spass/agents/kinds/program.py",
    "tests/unit/agents/kinds/test_second_look.py",
    "shared/spass/models/providers/mistral.py",
    "functions/tokens/whoami.py",
    "functions/workers/census.py",
}
LAW: Final = "test_a_replay_of_the_results_yields_the_same_effects_and_answer"
CHECKS: Final = [
    "tests/architecture",
    *("tests/unit/agents/kinds/test_registry.py", "tests/unit/agents/kinds/test_second_look.py"),
    *(f"tests/unit/agents/test_laws_of_kinds.py::{LAW}[{kind}]" for kind in ("second_look", "program")),
    *("tests/unit/web/test_openapi.py", "tests/unit/bench/test_coldstart.py"),
    "tests/functions/test_route_files.py::test_a_route_file_matches_its_row",
    "tests/functions/test_route_files.py::test_the_openapi_document_has_every_route_and_answer",
]


def write_examples(copy: Path) -> set[str]:
    """Write the files and the lines of the guides into ``copy``. Return the names of the files."""
    text = (ROOT / GUIDE).read_text(encoding="utf-8")
    files = dict(re.findall(r"`((?:shared|tests|functions)/[\w/]+\.py)`:\n\n```python\n(.*?)```", text, re.DOTALL))
    for name, source in files.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(source, encoding="utf-8")
    lines = re.findall(r"```text\n((?:\"\w+\": |Route\(|Worker\()[^\n]+,)\n```", text)
    assert len(lines) == len(files) - 1, "each file but the test has its line"
    for line in lines:
        registry = copy / next(name for part, name in REGISTRIES.items() if part in line)
        before, head, table = re.split(r"(\n(?:TOOLS|PROVIDERS|BUILT_IN|ROUTES|WORKERS): )", registry.read_text(), maxsplit=1)
        registry.write_text(before + head + re.sub(r"\n([})])\n", rf"\n    {line}\n\1\n", table, count=1), encoding="utf-8")
    return {*files}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("shared", "functions", "infra", "local", "tests", "docs", "agents", "requirements", "bench", "ui", ".github"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, folder)
    (folder / "node_modules").symlink_to(ROOT / "node_modules")
    assert write_examples(folder) == FILES
    run(folder, sys.executable, "-m", "local.openapi")
    return folder


def run(copy: Path, *command: str) -> None:
    environment = {"PYTHONPATH": "shared:.", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_examples_pass_the_linter_and_the_formatter(copy: Path) -> None:
    changed = sorted(FILES | {*REGISTRIES.values()})
    run(copy, sys.executable, "-m", "ruff", "check", "--no-cache", *changed)
    run(copy, sys.executable, "-m", "ruff", "format", "--no-cache", "--check", *changed)


def test_the_examples_have_types(copy: Path) -> None:
    if (ROOT / ".mypy_cache").is_dir():  # what it knows of the other modules saves most of the work
        shutil.copytree(ROOT / ".mypy_cache", copy / ".mypy_cache")
    run(copy, sys.executable, "-m", "mypy", "--follow-imports=silent", *sorted(FILES))


def test_the_examples_keep_to_the_floors(copy: Path) -> None:
    run(copy, str(Path(sys.executable).with_name("lint-imports")))


def test_the_examples_pass_the_tests_of_the_architecture_and_of_all_kinds(copy: Path) -> None:
    run(copy, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS)
