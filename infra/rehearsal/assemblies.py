"""The assemblies that a rehearsal deploys: that of today, and the one that the last release kept.

``make release`` keeps an assembly as ``releases/<environment>/<commit>.tar``. Before the first release, the one of ``FIRST_KEPT``
is synthesised instead. What is deployed are copies, in which the packages run on this machine's processor and the operator's file
is that of the rehearsal.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from infra.bundling import LAMBDA, Target, requirements_for
from infra.rehearsal.processes import ROOT, RehearsalFailed, run

ENVIRONMENT: Final = "prod"
FIRST_KEPT: Final = "fd68cd0b7c0c"
"""The last commit before most of the work on deployments. Its API is one body: nothing leads back to the form before (030)."""
_INFRA_PYTHON: Final = ROOT / ".venv-infra" / "bin" / "python"
_ENVIRONMENTS: Final = Path(os.environ.get("SPASS_ENVIRONMENTS") or ROOT / "environments.yaml")
CHANGED_PATH: Final = "/rehearsal"
_CHANGED: Final = f"""
import dataclasses, runpy
from infra import routes
changed = [dataclasses.replace(row, path="{CHANGED_PATH}") if row.path == "/healthz" else row for row in routes.ROUTES]
routes.ROUTES = tuple(changed)
runpy.run_path("app.py", run_name="__main__")
"""
_LINKED: Final = (".venv", ".venv-infra", "node_modules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The assembly of the last release: its commit, and its archive if ``make release`` has kept it."""

    commit: str
    archive: Path | None


class Assemblies:
    """Make assemblies in ``cache``, which stays, and copies of them in ``home``, which goes with the rehearsal.

    ``config`` has the operator's files of the rehearsal: ``gateway.yaml`` and ``agents``.
    """

    def __init__(self, *, cache: Path, home: Path, config: Path, log: Path) -> None:
        self._cache = cache
        self._home = home
        self._config = config
        self._log = log
        self._target = Target(python=LAMBDA.python, machine=platform.machine())
        cache.mkdir(parents=True, exist_ok=True)

    def synthesise(self) -> Path:
        """Return a copy of the assembly of the code as it is. Bundles that have not changed are not built again."""
        output = self._cache / "now"
        self._synthesise(ROOT, output)
        _remove_unused_assets(output)
        return self.copy(output, "now", (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8"))

    def changed(self, table: str) -> Path:
        """Return the assembly of the code with another path for ``/healthz``, in which the gateway uses ``table``."""
        output, file = self._home / "changed-synthesis", self._home / "environments.yaml"
        output.mkdir()
        for asset in (self._cache / "now").glob("asset.*"):
            (output / asset.name).symlink_to(asset)
        settings = yaml.safe_load(_ENVIRONMENTS.read_text(encoding="utf-8")) if _ENVIRONMENTS.exists() else None
        settings = settings or {}
        settings[ENVIRONMENT] = {**(settings.get(ENVIRONMENT) or {}), "restored": {"table": table}}
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self._synthesise(ROOT, output, program=("-c", _CHANGED), environments=file)
        return self.copy(output, "changed", (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8"))

    def kept(self) -> tuple[Kept, Path]:
        """Return the last release and a copy of its assembly."""
        release = last_release(ROOT / "releases" / ENVIRONMENT)
        commit = _full_commit(release.commit)
        output = self._cache / f"kept-{commit[:12]}"
        if not (output / "manifest.json").exists():
            self._forget_other_releases(output)
            if release.archive is None:
                self._synthesise_commit(commit, output)
            else:
                with tarfile.open(release.archive) as archive:
                    archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
                    archive.extractall(output)  # Python 3.11.4 and newer filter it
        pinned = subprocess.run(
            ["git", "show", f"{commit}:requirements/runtime.txt"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        return Kept(commit=commit, archive=release.archive), self.copy(_assembly_in(output), "kept", pinned)

    def _synthesise_commit(self, commit: str, output: Path) -> None:
        """Synthesise an earlier commit with the environments of this one."""
        checkout = self._home / "checkout"
        checkout.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive, check=True)
        for name in _LINKED:
            (checkout / name).symlink_to((ROOT / name).resolve())
        self._synthesise(checkout, output)
        shutil.rmtree(checkout)

    def _synthesise(
        self, root: Path, output: Path, *, program: Sequence[str] = ("app.py",), environments: Path | None = None
    ) -> None:
        (output / "manifest.json").unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PATH": f"{ROOT / '.venv-infra' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{root / 'shared'}{os.pathsep}{root}",
            "CDK_OUTDIR": str(output),
            "CDK_CONTEXT_JSON": json.dumps({"env": ENVIRONMENT}),
            "SPASS_CONFIG": str(self._config / "gateway.yaml"),
            "SPASS_AGENTS": str(self._config / "agents"),
        }
        if environments is not None:
            environment["SPASS_ENVIRONMENTS"] = str(environments)
        run([sys.executable, "-m", "local.validate"], log=self._log, environment=environment, cwd=root)
        run([_INFRA_PYTHON, *program], log=self._log, environment=environment, cwd=root)

    def copy(self, assembly: Path, name: str, pinned: str) -> Path:
        """Copy an assembly by links, and replace in the copy what this machine cannot run or the rehearsal must know."""
        copy = self._home / name
        shutil.copytree(assembly, copy, copy_function=_link_or_copy, ignore=shutil.ignore_patterns(".cache"))
        for packages in copy.glob("asset.*/python"):
            if self._target.machine != LAMBDA.machine and any(packages.rglob("*.so")):
                self._replace_native(packages, pinned)
        for folder in copy.glob("asset.*/config"):
            shutil.rmtree(folder)
            shutil.copytree(self._config, folder)
        return copy

    def _replace_native(self, packages: Path, pinned: str) -> None:
        """Replace the compiled files of these packages by those for this machine, of the same pinned versions."""
        names = {_normal(line.split("==")[0]) for line in (_pin_of(one) for one in packages.glob("*.dist-info")) if line}
        lines = [line for line in requirements_for(self._target, pinned) if _normal(line.split("==")[0]) in names]
        native = self._native("\n".join(lines))
        for compiled in packages.rglob("*.so*"):
            compiled.unlink()
        for compiled in native.rglob("*.so*"):
            target = packages / compiled.relative_to(native)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(compiled, target)

    def _native(self, lines: str) -> Path:
        """Return the folder with these packages for this machine. It is kept for the next rehearsal."""
        digest = hashlib.sha256(f"{self._target}{lines}".encode()).hexdigest()[:12]
        folder = self._cache / f"native-{digest}"
        if folder.exists():
            return folder
        pins, scratch = self._home / "native.txt", folder.with_suffix(".part")
        pins.write_text(lines, encoding="utf-8")
        shutil.rmtree(scratch, ignore_errors=True)
        platforms = [argument for name in self._target.platforms() for argument in ("--platform", name)]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile"]
        command += ["--require-hashes", "--ignore-requires-python", "--only-binary=:all:", *platforms, "--implementation", "cp"]
        command += ["--python-version", self._target.python, "--target", str(scratch), "-r", str(pins)]
        run(command, log=self._log, environment=dict(os.environ))
        scratch.rename(folder)
        return folder

    def _forget_other_releases(self, output: Path) -> None:
        for old in self._cache.glob("kept-*"):
            shutil.rmtree(old)
        output.mkdir()


def _link_or_copy(source: str, target: str) -> None:
    """Link a file of a bundle. The next synthesis writes a template into the file that there is, so copy it."""
    if ".json" in Path(source).suffixes and not any(part.startswith("asset.") for part in Path(source).parts):
        shutil.copyfile(source, target)
    else:
        os.link(source, target)


def last_release(folder: Path) -> Kept:
    """Return the newest archive in ``folder``, or the commit that stands for it before the first release."""
    archives = sorted(folder.glob("*.tar"), key=lambda path: path.stat().st_mtime)
    if not archives:
        return Kept(commit=FIRST_KEPT, archive=None)
    return Kept(commit=archives[-1].stem, archive=archives[-1])


def _full_commit(commit: str) -> str:
    found = subprocess.run(["git", "rev-parse", f"{commit}^{{commit}}"], cwd=ROOT, check=False, capture_output=True, text=True)
    if found.returncode:
        raise RehearsalFailed(f"This checkout has no commit {commit}, whose assembly is upgraded. Run: git fetch --unshallow")
    return found.stdout.strip()


def _assembly_in(folder: Path) -> Path:
    """Return the assembly in ``folder``, which an archive may hold as ``cdk.out``."""
    return folder if (folder / "manifest.json").exists() else folder / "cdk.out"


def _remove_unused_assets(assembly: Path) -> None:
    """Remove the bundles of earlier commits, which the CDK leaves."""
    named = "".join(file.read_text(encoding="utf-8") for file in assembly.glob("*.assets.json"))
    for asset in assembly.glob("asset.*"):
        if asset.name not in named:
            shutil.rmtree(asset)


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _pin_of(distribution: Path) -> str | None:
    """Return ``name==version`` of an installed package that has compiled files, otherwise None."""
    if "Root-Is-Purelib: true" in (distribution / "WHEEL").read_text(encoding="utf-8"):
        return None
    return distribution.name.removesuffix(".dist-info").replace("-", "==")
