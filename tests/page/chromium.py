"""Find a Chromium: one that is installed, else on Linux the one that the npm package ``@sparticuz/chromium`` carries."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_PLACES: Final = (
    Path("/opt/google/chrome/chrome"),
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
    Path("C:/Program Files/Google/Chrome/Application/chrome.exe"),
)
_PACKED: Final = ROOT / "node_modules" / ".chromium"
_UNPACK: Final = "import('@sparticuz/chromium').then(({default: chromium}) => chromium.executablePath()).then(console.log)"


class NoChromium(Exception):
    """There is no Chromium on this machine."""


def find_chromium() -> Path:
    """Return the path of a Chromium. Unpack the one of the npm package if no other is installed.

    Raises:
        NoChromium: there is none; the message says what to install.
    """
    if chosen := os.environ.get("CHROME_PATH"):
        if not Path(chosen).is_file():
            raise NoChromium(f"CHROME_PATH names no file: {chosen}")
        return Path(chosen)
    on_path = [Path(found) for name in _NAMES if (found := shutil.which(name))]
    for place in (*on_path, *_PLACES):
        if place.is_file():
            return place
    if not sys.platform.startswith("linux"):
        raise NoChromium("The tests of the page need Chromium or Chrome: install one, or set CHROME_PATH.")
    unpacked = _PACKED / "chromium"
    if not unpacked.is_file():
        _unpack()
    return unpacked


def _unpack() -> None:
    """Unpack the package's Chromium below ``node_modules``. Two processes may do so at once: each has a folder of its own."""
    folder = _PACKED.with_name(f".chromium-{os.getpid()}")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["node", "-e", _UNPACK], cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)}, check=True, capture_output=True
        )
        folder.rename(_PACKED)
    except OSError:
        if not (_PACKED / "chromium").is_file():
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
