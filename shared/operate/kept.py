"""Keep the assemblies of releases, so that an operator can go back to one without building it.

A release is ``<commit>.tar`` in the folder of its environment, with the CDK's assembly as ``cdk.out/``. The time of the file is
that of its deployment. While it is written, and then while it is deployed, its name has other endings.
"""

import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ASSEMBLY: Final = "cdk.out"
_KEPT: Final = ".tar"
_DEPLOYING: Final = ".tar.deploying"
_WRITING: Final = ".tar.writing"


@dataclass(frozen=True, slots=True)
class Release:
    """A kept release. ``deployed`` is the time of its deployment in seconds, or 0 if the operator has gone back from it."""

    file: Path
    commit: str
    deployed: float

    def __str__(self) -> str:
        since = (
            f"deployed {datetime.fromtimestamp(self.deployed, UTC):%Y-%m-%d %H:%M} UTC" if self.deployed else "left by going back"
        )
        return f"{self.commit}  {since}"

    @contextmanager
    def unpack(self) -> Iterator[Path]:
        """Yield the assembly in a folder, which is removed at the end.

        Raises:
            tarfile.TarError: the file is cut off, or has a member that leads out of the folder.
        """
        with TemporaryDirectory(prefix=".unpacked-", dir=self.file.parent) as folder:
            try:
                with tarfile.open(self.file) as archive:
                    archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
                    archive.extractall(folder)  # noqa: S202  # Python 3.11.4 and newer filter it
            except tarfile.TarError as error:
                raise tarfile.TarError(f"{self.file}: {error}") from error
            yield Path(folder) / ASSEMBLY


@dataclass(frozen=True, slots=True)
class Releases:
    """The kept releases of one environment, in ``folder``."""

    folder: Path

    def kept(self) -> list[Release]:
        """Return the releases in the order of their deployment. Those that the operator has left come first."""
        files = [(file.stat().st_mtime, file) for file in self.folder.glob(f"*{_KEPT}")]
        return [Release(file, file.name.removesuffix(_KEPT), deployed) for deployed, file in sorted(files)]

    def find(self, start: str) -> list[Release]:
        """Return the releases whose commits begin with ``start``."""
        return [release for release in self.kept() if release.commit.startswith(start)]

    def before(self, commit: str) -> Release | None:
        """Return the release that was deployed before the one of this commit, or None if one of them is not kept."""
        kept = [release for release in self.kept() if release.deployed]
        commits = [release.commit for release in kept]
        place = commits.index(commit) if commit in commits else 0
        return kept[place - 1] if place else None

    def add(self, assembly: Path, commit: str) -> Release:
        """Keep this assembly, which is about to be deployed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{commit}{_WRITING}"
        stale = _stale(assembly)
        with tarfile.open(file, "w") as archive:
            archive.add(assembly, ASSEMBLY, filter=lambda member: None if {*Path(member.name).parts[1:2]} & stale else member)
        return Release(file.replace(self.folder / f"{commit}{_DEPLOYING}"), commit, 0)

    def settle(self, running: str | None) -> None:
        """Keep the release that was about to be deployed, if it is the one that runs now. Remove it if it is another one, or if
        it was not written whole."""
        for file in self.folder.glob(f"*{_KEPT}.*"):
            if file.name == f"{running}{_DEPLOYING}":
                os.utime(file)
                file.replace(file.with_suffix(""))
            else:
                file.unlink()

    def return_to(self, release: Release) -> None:
        """Note that the operator has gone back to this release from all that were deployed after it."""
        if not release.deployed:
            os.utime(release.file)
            return
        for later in self.kept():
            if later.deployed > release.deployed:
                os.utime(later.file, (0, 0))


def _stale(assembly: Path) -> set[str]:
    """Return the bundles that earlier syntheses have left in the folder."""
    artifacts = json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))["artifacts"].values()
    lists = [one["properties"]["file"] for one in artifacts if one["type"] == "cdk:asset-manifest"]
    files = [json.loads((assembly / name).read_text(encoding="utf-8"))["files"] for name in lists]
    used = {file["source"]["path"] for one in files for file in one.values()}
    return {bundle.name for bundle in assembly.glob("asset.*")} - used
