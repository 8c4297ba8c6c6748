"""The tables of the README agree with the code.

A comment marks the start of a table: `<!-- routes -->`, `<!-- environment -->` or `<!-- make -->`. The first line without a `|`
ends it. Its first column has the names in backticks.
"""

import re
from pathlib import Path

import pytest

from infra.routes import ROUTES

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"

# One part of the program sets these for another part. Operators do not set them.
INTERNAL = frozenset({"SPASS_STANDIN_KEY", "SPASS_SOAK"})

LAST_ROUTE = ("DELETE", "/v1/managed-agents/{agent_id}/runs/{run_id}")
"""The last route of the product. An engineer's own route, which is one file and one line, follows it and needs no row."""


def table(mark: str) -> list[str]:
    """Return the first cell of each row of the marked table, without the header."""
    lines = README.read_text().split(f"<!-- {mark} -->", 1)[1].strip().splitlines()
    rows = lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [row.split("|")[1].strip() for row in rows[2:]]


def test_the_readme_lists_the_routes_of_the_code() -> None:
    documented = {(method, path) for cell in table("routes") for method, path in re.findall(r"`([A-Z]+) (\S+)`", cell)}
    rows = [(route.method, route.path) for route in ROUTES]
    assert documented == {*rows[: rows.index(LAST_ROUTE) + 1]}


def test_the_readme_lists_the_environment_variables_of_the_code() -> None:
    documented = {name for cell in table("environment") for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", cell)}
    files = [file for top in ("shared", "local") for file in (ROOT / top).rglob("*.py")]
    code = "\n".join(file.read_text() for file in files)
    read = set(re.findall(r"\"(SPASS_[A-Z_]+)\"", code)) - INTERNAL
    assert read <= documented
    assert all(re.search(rf"\b{name}\b", code) for name in documented)


def test_the_make_targets_in_the_readme_are_in_the_makefile() -> None:
    documented = {name for cell in table("make") for name in re.findall(r"`make ([a-z-]+)`", cell)}
    assert documented <= set(re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text()))


@pytest.mark.parametrize("path", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_shell_examples_also_run_when_they_are_pasted_into_zsh(path: Path) -> None:
    """An interactive zsh runs comments as commands."""
    blocks = re.findall(r"(?ms)^ *```(?:bash|sh)\n(.*?)^ *```", path.read_text(encoding="utf-8"))
    lines = "".join(blocks).splitlines()
    comments = [line for line in lines if re.match(r"\s*#", line)]
    assert [line for line in comments if not re.fullmatch(r"# [\w ,.:/-]+", line)] == []
    assert [line for line in lines if line not in comments and re.search(r"\s#\s", line)] == []
    assert not blocks or "$SPASS" not in "".join(blocks) or "export SPASS=" in "".join(blocks)


def test_a_page_links_to_every_page_of_the_documentation() -> None:
    pages = [README, *(ROOT / "docs").glob("*.md")]
    linked = {Path(name).name for page in pages for name in re.findall(r"\]\(([^)]+\.md)\)", page.read_text(encoding="utf-8"))}
    assert {page.name for page in pages} - {README.name} <= linked
