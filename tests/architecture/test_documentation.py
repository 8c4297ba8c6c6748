"""The pages of the documentation agree with the code and with each other, and every block in them can be read.

A comment marks the start of a table: `<!-- environment -->` or `<!-- make -->`. The first line without a `|` ends it. Its first
column has the names in backticks.
"""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

from local import route_tables

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = ROOT / "README.md"
DOCS: Final = ROOT / "docs"
PAGES: Final = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
WIDEST_CELL: Final = 200
"""Characters of the longest cell of a table. What needs more is a section."""

# One part of the program sets these for another part. Operators do not set them.
INTERNAL: Final = frozenset({"SPASS_STANDIN_KEY", "SPASS_SOAK"})


class Block(NamedTuple):
    """A fenced block of a page, without the indentation of its list."""

    language: str
    text: str


def blocks(path: Path) -> Iterator[Block]:
    for indent, language, text in re.findall(r"(?ms)^( *)```(\S*)\n(.*?)^ *```", path.read_text(encoding="utf-8")):
        yield Block(language, re.sub(f"(?m)^{indent}", "", text))


def table(page: Path, mark: str) -> list[str]:
    """Return the first cell of each row of the marked table, without the header."""
    lines = page.read_text(encoding="utf-8").split(f"<!-- {mark} -->", 1)[1].strip().splitlines()
    rows = lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [row.split("|")[1].strip() for row in rows[2:]]


def links(path: Path) -> Iterator[str]:
    """Yield the targets of the links and pictures of a page that are in the repository."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://")):
            yield target


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", path.read_text(encoding="utf-8"))
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()).replace(" ", "-") for heading in headings
    }


def test_the_readme_is_a_page_of_150_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_page_of_routes_is_the_one_that_make_openapi_writes() -> None:
    assert route_tables.FILE.read_text(encoding="utf-8") == route_tables.page(), "run `make openapi`"


def test_the_table_of_environment_variables_has_those_of_the_code() -> None:
    documented = {
        name for cell in table(DOCS / "configuration.md", "environment") for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", cell)
    }
    files = [file for top in ("shared", "local") for file in (ROOT / top).rglob("*.py")]
    code = "\n".join(file.read_text() for file in files)
    read = set(re.findall(r"\"(SPASS_[A-Z_]+)\"", code)) - INTERNAL
    assert read <= documented
    assert all(re.search(rf"\b{name}\b", code) for name in documented)


def test_every_make_target_of_the_documentation_is_in_the_makefile() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text()))
    documented = {name for cell in table(ROOT / "CONTRIBUTING.md", "make") for name in re.findall(r"`make ([a-z-]+)`", cell)}
    assert documented
    assert documented <= targets
    mentioned = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))}
    assert mentioned <= targets


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_has_a_language_and_is_well_formed(path: Path) -> None:
    for block in blocks(path):
        match block.language:
            case "bash":
                done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr + block.text
            case "python":
                ast.parse(block.text)
            case "json":
                json.loads(block.text)
            case "yaml":
                assert yaml.safe_load(block.text)
            case language:
                assert language in {"text", "mermaid", "js"}, block.text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_shell_examples_also_run_when_they_are_pasted_into_zsh(path: Path) -> None:
    """An interactive zsh runs comments as commands."""
    examples = [block.text for block in blocks(path) if block.language == "bash"]
    lines = "".join(examples).splitlines()
    comments = [line for line in lines if re.match(r"\s*#", line)]
    assert [line for line in comments if not re.fullmatch(r"# [\w ,.:/-]+", line)] == []
    assert [line for line in lines if line not in comments and re.search(r"\s#\s", line)] == []
    assert not examples or not re.search(r"\$SPASS\b", "".join(examples)) or "export SPASS=" in "".join(examples)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_cell_of_a_table_is_no_paragraph(path: Path) -> None:
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in re.split(r"(?<!\\)\|", row) if len(cell) > WIDEST_CELL] == []


@pytest.mark.parametrize("path", [*PAGES, *sorted((DOCS / "decisions").glob("*.md"))], ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in links(path):
        name, _, anchor = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), target


def test_every_page_is_at_most_two_clicks_away_from_the_readme() -> None:
    reached, front = {README}, {README}
    for _ in range(2):
        targets = {(page.parent / target.partition("#")[0]).resolve() for page in front for target in links(page)}
        front = {target for target in targets if target.suffix == ".md"} - reached
        reached |= front
    assert {*DOCS.glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"} <= reached


def test_the_changelog_begins_with_the_first_release() -> None:
    headings = re.findall(r"(?m)^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert headings[-1] == "0.1.0"
    assert headings[0] == "Unreleased"


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_a_form_of_an_issue_has_what_github_demands(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert form.keys() == {"blank_issues_enabled", "contact_links"}
        return
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
