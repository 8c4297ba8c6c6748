"""The vendored modules of the page are unchanged files of npm packages, which ``package.json`` pins."""

import json
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
UI: Final = ROOT / "ui"
PACKAGES: Final = ROOT / "node_modules"
VENDORED: Final = {
    "vendor-dompurify.js": ("dompurify", "dist/purify.es.mjs"),
    "vendor-highlight.js": ("@highlightjs/cdn-assets", "es/highlight.min.js"),
    "vendor-lit-html.js": ("lit-html", "lit-html.js"),
    "vendor-markdown-it.js": ("markdown-it", "dist/browser/markdown-it.esm.min.mjs"),
}
PINS: Final[dict[str, str]] = json.loads((ROOT / "package.json").read_text())["devDependencies"]
LOCK: Final = (ROOT / "package-lock.json").read_text()


@pytest.mark.parametrize("name", VENDORED)
def test_a_vendored_module_is_the_file_of_the_pinned_package(name: str) -> None:
    package, file = VENDORED[name]
    installed = json.loads((PACKAGES / package / "package.json").read_text())["version"]
    assert installed == PINS[package]
    assert (UI / name).read_bytes() == (PACKAGES / package / file).read_bytes()


def test_every_vendored_module_is_compared() -> None:
    assert {path.name for path in UI.glob("vendor-*.js")} == set(VENDORED)


def test_no_own_module_of_the_page_is_over_300_lines() -> None:
    own = [path for path in UI.glob("*.js") if path.name not in VENDORED]
    assert own
    assert {path.name: lines for path in own if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 300} == {}


def test_npm_packages_are_pinned_and_hashed_and_name_no_registry() -> None:
    assert [pin for pin in PINS.values() if not re.fullmatch(r"\d+\.\d+\.\d+", pin)] == []
    packages = {path: entry for path, entry in json.loads(LOCK)["packages"].items() if path}
    assert [path for path, entry in packages.items() if not entry.get("integrity", "").startswith("sha512-")] == []
    assert {name: packages[f"node_modules/{name}"]["version"] for name in PINS} == PINS
    assert '"resolved"' not in LOCK
