"""Build the page when the gateway starts on this machine, and build it anew when a file of ``ui/`` changes."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from local.page_build import ROOT, PageNotBuilt, build_page

_POLL_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 3.0


class PageReload:
    """Build the page of ``root``. ``notes`` say why that failed, if so: the gateway serves everything else."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._built = self._seen = _versions(root)
        self.notes = self._build()

    def poll(self) -> Sequence[str]:
        """Build a change that an earlier poll has seen already: until then, an editor may still be writing. Return the report."""
        before, self._seen = self._seen, _versions(self._root)
        if self._seen == self._built or self._seen != before:
            return []
        self._built = self._seen
        return self._build() or ["ui/: the page is built anew; reload it"]

    def _build(self) -> Sequence[str]:
        try:
            build_page(self._root)
        except PageNotBuilt as error:
            return [f"The page at /ui could not be built. {error}"]
        return []


@contextmanager
def rebuilding_page(reload: PageReload) -> Iterator[None]:
    """Poll in a thread until the block ends. Print the reports."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(_POLL_SECONDS):
            if report := reload.poll():
                print("\n".join(f"  {line}" for line in report), flush=True)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOP_SECONDS)


def _versions(root: Path) -> Mapping[str, tuple[int, int]]:
    """Return what changes when a file of the page is written: its time in nanoseconds, and its size."""
    found: dict[str, tuple[int, int]] = {}
    for path in (root / "ui").glob("*"):
        try:
            status = path.stat()
        except OSError:  # it was removed meanwhile
            continue
        found[path.name] = (status.st_mtime_ns, status.st_size)
    return found
