"""The page's own modules are short, its libraries come from npm, and ``package-lock.json`` pins them."""

import json
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
UI: Final = ROOT / "ui"
PACKAGES: Final[dict[str, Any]] = json.loads((ROOT / "package.json").read_text())
LOCK: Final = (ROOT / "package-lock.json").read_text()


def test_no_module_of_the_page_is_over_300_lines() -> None:
    modules = [*UI.glob("*.js")]
    assert modules
    assert {path.name: lines for path in modules if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 300} == {}


def test_npm_packages_are_pinned_and_hashed_and_name_no_registry() -> None:
    pins: dict[str, str] = PACKAGES["dependencies"] | PACKAGES["devDependencies"]
    assert [pin for pin in pins.values() if not re.fullmatch(r"\d+\.\d+\.\d+", pin)] == []
    packages = {path: entry for path, entry in json.loads(LOCK)["packages"].items() if path}
    assert [path for path, entry in packages.items() if not entry.get("integrity", "").startswith("sha512-")] == []
    assert {name: packages[f"node_modules/{name}"]["version"] for name in pins} == pins
    assert '"resolved"' not in LOCK


def test_the_build_of_the_page_needs_no_package_that_only_the_checks_need() -> None:
    imported = {
        re.sub(r"^((?:@[^/]+/)?[^/]+).*", r"\1", name)
        for path in UI.glob("*.js")
        for name in re.findall(r'(?m)^import [^;]*?from "([^."][^"]*)"', path.read_text(encoding="utf-8"))
    }
    assert imported == set(PACKAGES["dependencies"]) - {"esbuild"}


def test_every_module_that_two_views_use_is_in_the_shared_file() -> None:
    """Without this, the first use would load a file for each set of views that share a module."""
    imports = {
        path.name: set(re.findall(r'(?m)^import (?:[^;]*?from )?"\./([a-z-]+\.js)"', path.read_text(encoding="utf-8")))
        for path in UI.glob("*.js")
    }
    views = set(re.findall(r'await import\("\./([a-z-]+\.js)"\)', (UI / "app.js").read_text(encoding="utf-8")))
    used = [_reached(entry, {**imports, entry: imports[entry] - {"shared.js"}}) for entry in ("app.js", *sorted(views))]
    assert [entry for entry in ("app.js", *views) if "shared.js" not in imports[entry]] == []
    shared = {module for module in imports if sum(module in reached for reached in used) > 1}
    assert shared == imports["shared.js"]


def _reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that a browser loads with ``module``."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += imports[current]
    return found
