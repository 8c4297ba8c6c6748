"""Bundle the page of ``ui/`` and the libraries that it imports into ``.page/``.

    python -m local.page_build

``.page/`` holds files whose names contain a hash of their content, so that browsers may keep them for ever, their source maps,
and ``manifest.json``: the name of the page, and the files that are served, with their media types. The manifest is written last,
so a reader finds a whole build or none. `make run`, the tests and a deployment use this build.
"""

import fcntl
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
MANIFEST: Final = "manifest.json"
_LOCK: Final = "lock"
_ENTRIES: Final = ("app.js", "page.css", "icon.svg")
_FIRST: Final = ("app.js", "chat.js")
"""The modules that the first use needs. The page names the files in which they are, so that a browser loads all at once."""
_NOT_INSTALLED: Final = "The libraries of the page are not installed, or not those of package-lock.json. Run: make page"
_WORKER: Final = "highlight-worker.js"
_MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_OPTIONS: Final = (
    "--bundle",
    "--splitting",
    "--format=esm",
    "--target=es2022",
    "--minify",
    "--loader:.svg=copy",
    "--entry-names=[name]-[hash]",
    "--chunk-names=[name]-[hash]",
    "--sourcemap=external",
    # The hashes cover the paths in the source maps. They are the same also where node_modules is a link.
    "--preserve-symlinks",
    "--log-level=error",
)


class PageNotBuilt(Exception):
    """The page cannot be built. The message says why and what to do."""


def build_page(root: Path = ROOT) -> None:
    """Build the folder ``ui`` of ``root`` into its folder ``.page``, unless that holds this build.

    Raises:
        PageNotBuilt: a library or a file is missing, or a source has a mistake.
    """
    output = root / ".page"
    try:
        output.mkdir(exist_ok=True)
        with (output / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a gateway and a test may build at once
            sources = _digest(root)
            if _is_built(output, sources):
                return
            # The scratch folder is beside ``ui``, because the source maps have paths relative to it.
            with tempfile.TemporaryDirectory(prefix=".page-", dir=root) as scratch:
                _publish(Path(scratch), output, {"sources": sources, **_bundle(root, Path(scratch))})
    except OSError as error:
        raise PageNotBuilt(f"The page cannot be written to {output}: {error.strerror}.") from error


def _digest(root: Path) -> str:
    """Return a hash of everything that a build depends on."""
    digest = hashlib.sha256()
    for file in [Path(__file__), root / "package-lock.json", *sorted(path for path in (root / "ui").iterdir() if path.is_file())]:
        content = file.read_bytes()
        digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _is_built(output: Path, sources: str) -> bool:
    try:
        manifest: Mapping[str, Any] = json.loads((output / MANIFEST).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return manifest["sources"] == sources and all((output / name).is_file() for name in [manifest["page"], *manifest["files"]])


def _bundle(root: Path, scratch: Path) -> dict[str, Any]:
    """Write the files of a build to ``scratch``. Return the manifest without its ``sources``."""
    _check_libraries(root)
    (worker,) = _esbuild(root, scratch, [_WORKER]).values()
    outputs = _esbuild(root, scratch, _ENTRIES, f'--define:HIGHLIGHT_WORKER="{worker.name}"')
    page = _page((root / "ui" / "index.html").read_text(encoding="utf-8"), outputs)
    name = f"index-{hashlib.sha256(page.encode()).hexdigest()[:8].upper()}.html"
    (scratch / name).write_text(page, encoding="utf-8")
    files = {file.name: _MEDIA_TYPES[file.suffix] for file in sorted(scratch.iterdir()) if file.suffix in _MEDIA_TYPES}
    return {"page": name, "files": files}


def _check_libraries(root: Path) -> None:
    """Check that the installed libraries are those of the lock file, because the manifest names a build by that file.

    Raises:
        PageNotBuilt: one is not.
    """
    packages = json.loads((root / "package-lock.json").read_bytes())["packages"]
    for folder, pinned in packages.items():
        if not folder or pinned.get("dev") or pinned.get("optional"):  # the page itself, tools, and other machines' programs
            continue
        try:
            installed = json.loads((root / folder / "package.json").read_bytes())
        except FileNotFoundError:
            raise PageNotBuilt(_NOT_INSTALLED) from None
        if installed["version"] != pinned["version"]:
            raise PageNotBuilt(_NOT_INSTALLED)


class _Output:
    """A file that esbuild has written. ``imports`` are the files that a browser loads together with it."""

    def __init__(self, path: str, described: Mapping[str, Any]) -> None:
        self.name = Path(path).name
        self.source = Path(described.get("entryPoint", "")).name
        self.imports = [Path(one["path"]).name for one in described["imports"] if one["kind"] == "import-statement"]


def _esbuild(root: Path, scratch: Path, entries: Iterable[str], *more: str) -> dict[str, _Output]:
    """Return the files that the modules ``entries`` of ``ui`` become, without source maps, by their names.

    Raises:
        PageNotBuilt: esbuild is not installed, or a source has a mistake.
    """
    programs = sorted((root / "node_modules" / "@esbuild").glob("*/bin/esbuild"))
    if not programs:
        raise PageNotBuilt(_NOT_INSTALLED)
    described = scratch / "metafile.json"
    command = [str(programs[0]), *(f"ui/{entry}" for entry in entries), *_OPTIONS, *more]
    command += [f"--outdir={scratch}", f"--metafile={described}"]
    result = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    if result.returncode:
        raise PageNotBuilt(f"The page has a mistake:\n{result.stderr.strip()}")
    outputs = json.loads(described.read_bytes())["outputs"]
    described.unlink()
    found = (_Output(path, one) for path, one in outputs.items() if not path.endswith(".map"))
    return {one.name: one for one in found}


def _page(source: str, outputs: Mapping[str, _Output]) -> str:
    """Return the page, which names the built files in place of their sources, and those that they import.

    Raises:
        PageNotBuilt: the page names a file that is not built.
    """
    by_source = {one.source: one for one in outputs.values() if one.source}

    def built(match: re.Match[str]) -> str:
        if match[2] not in by_source:
            raise PageNotBuilt(f"ui/index.html names {match[2]!r}. It can name: {', '.join(_ENTRIES)}.")
        return f'{match[1]}="ui/{by_source[match[2]].name}"'

    needed: dict[str, None] = {}
    for first in _FIRST:
        _add_imports(by_source[first].name, outputs, needed)
    del needed[by_source[_FIRST[0]].name]
    preloads = "".join(f'<link rel="modulepreload" href="ui/{name}">\n    ' for name in needed)
    named = re.sub(r'(src|href)="ui/([^"]+)"', built, source)
    return named.replace('<script type="module"', f'{preloads}<script type="module"', 1)


def _add_imports(name: str, outputs: Mapping[str, _Output], needed: dict[str, None]) -> None:
    if name not in needed:
        needed[name] = None
        for imported in outputs[name].imports:
            _add_imports(imported, outputs, needed)


def _publish(scratch: Path, output: Path, manifest: Mapping[str, Any]) -> None:
    """Move the files of a build into ``output``, replace its manifest, and remove the files of other builds."""
    kept = {MANIFEST, _LOCK, *(file.name for file in scratch.iterdir())}
    for file in scratch.iterdir():
        file.replace(output / file.name)
    new = scratch / MANIFEST
    new.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    new.replace(output / MANIFEST)
    for file in output.iterdir():
        if file.name not in kept:
            file.unlink()


def main() -> None:
    try:
        build_page()
    except PageNotBuilt as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
