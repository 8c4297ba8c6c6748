"""The tables of the README say what the code says.

A table is marked by a comment before it and ends with the first line that is not its own: `<!-- routes -->`,
`<!-- environment -->`, `<!-- make -->`. Its first column holds the names in backticks.
"""

import re
from pathlib import Path

import pytest

from infra.routes import ROUTES

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"

# Set by one part of the program for another, never by a person.
INTERNAL = frozenset({"SPASS_STANDIN_KEY", "SPASS_SOAK"})


def table(mark: str) -> list[str]:
    """The first cells of the rows of the marked table, without its head."""
    lines = README.read_text().split(f"<!-- {mark} -->", 1)[1].strip().splitlines()
    rows = lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [row.split("|")[1].strip() for row in rows[2:]]


def test_the_routes_are_those_of_the_code() -> None:
    told = {(method, path) for cell in table("routes") for method, path in re.findall(r"`([A-Z]+) (\S+)`", cell)}
    assert told == {(route.method, route.path) for route in ROUTES}


def test_the_environment_variables_are_those_of_the_code() -> None:
    told = {name for cell in table("environment") for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", cell)}
    files = [file for top in ("shared", "local") for file in (ROOT / top).rglob("*.py")]
    code = "\n".join(file.read_text() for file in files)
    read = set(re.findall(r"\"(SPASS_[A-Z_]+)\"", code)) - INTERNAL
    assert read <= told
    assert all(re.search(rf"\b{name}\b", code) for name in told)


def test_the_make_targets_are_those_of_the_makefile() -> None:
    told = {name for cell in table("make") for name in re.findall(r"`make ([a-z-]+)`", cell)}
    assert told <= set(re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text()))


@pytest.mark.parametrize("path", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_what_is_pasted_works_in_a_zsh_which_takes_comments_for_commands(path: Path) -> None:
    blocks = re.findall(r"(?ms)^ *```(?:bash|sh)\n(.*?)^ *```", path.read_text(encoding="utf-8"))
    lines = "".join(blocks).splitlines()
    comments = [line for line in lines if re.match(r"\s*#", line)]
    assert [line for line in comments if not re.fullmatch(r"# [\w ,.:/-]+", line)] == []
    assert [line for line in lines if line not in comments and re.search(r"\s#\s", line)] == []
    assert not blocks or "$SPASS" not in "".join(blocks) or "export SPASS=" in "".join(blocks)


def test_every_page_of_the_documentation_is_linked() -> None:
    pages = [README, *(ROOT / "docs").glob("*.md")]
    linked = {Path(name).name for page in pages for name in re.findall(r"\]\(([^)]+\.md)\)", page.read_text(encoding="utf-8"))}
    assert {page.name for page in pages} - {README.name} <= linked
