"""Find a Chromium: one that is installed, else on Linux the one that the npm package ``@sparticuz/chromium`` carries.

The latter runs on a Linux that has only glibc: the package carries the other libraries and a font.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Playwright

ROOT: Final = Path(__file__).resolve().parents[2]
_ARGUMENTS: Final = ("--headless=shell", "--no-sandbox", "--no-zygote", "--disable-gpu")
"""It starts with these also as root in a container."""
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_PLACES: Final = (
    Path("/opt/google/chrome/chrome"),
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
    Path("C:/Program Files/Google/Chrome/Application/chrome.exe"),
)
_PACKED: Final = ROOT / "node_modules" / ".chromium"
_UNPACK: Final = "import('@sparticuz/chromium').then(({default: chromium}) => chromium.executablePath()).then(console.log)"
_WITH_LIBRARIES: Final = {"AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x"}
"""The package then unpacks the libraries, too, that a bare Linux does not have (NSS, NSPR, expat)."""
_SYSTEM_FONTS: Final = Path("/etc/fonts/fonts.conf")
_FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""
_NO_LIBRARY: Final = 127
"""The exit code of a program whose libraries are missing."""


@dataclass(frozen=True, slots=True)
class Chromium:
    """An executable, and the variables that it needs in addition to those of this process."""

    path: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class NoChromium(Exception):
    """There is no Chromium on this machine."""


def launch_chromium(playwright: Playwright, *more: str) -> Browser:
    """Start a headless Chromium, with ``more`` arguments. Close it after its use.

    Raises:
        NoChromium: there is none; the message says what to install.
    """
    chromium = find_chromium()
    environment: dict[str, str | float | bool] = {**os.environ, **chromium.environment}
    return playwright.chromium.launch(executable_path=chromium.path, args=[*_ARGUMENTS, *more], env=environment)


def find_chromium() -> Chromium:
    """Return a Chromium. Unpack the one of the npm package if no other is installed.

    Raises:
        NoChromium: there is none; the message says what to install.
    """
    if chosen := os.environ.get("CHROME_PATH"):
        if not Path(chosen).is_file():
            raise NoChromium(f"CHROME_PATH names no file: {chosen}")
        return Chromium(Path(chosen))
    on_path = [Path(found) for name in _NAMES if (found := shutil.which(name))]
    for place in (*on_path, *_PLACES):
        if place.is_file():
            return Chromium(place)
    if not sys.platform.startswith("linux"):
        raise NoChromium("The tests of the page need Chromium or Chrome: install one, or set CHROME_PATH.")
    if not (_PACKED / "chromium").is_file():
        _unpack()
    return Chromium(_PACKED / "chromium", _libraries() | _fonts())


def _libraries() -> dict[str, str]:
    """Return the variables with which the unpacked Chromium finds its libraries: none if the system has them."""
    found = subprocess.run([_PACKED / "chromium", "--version"], check=False, capture_output=True)
    return {"LD_LIBRARY_PATH": str(_PACKED / "al2023" / "lib")} if found.returncode == _NO_LIBRARY else {}


def _fonts() -> dict[str, str]:
    """Return the variables with which the unpacked Chromium finds a font: none if the system has some."""
    return {} if _SYSTEM_FONTS.is_file() else {"FONTCONFIG_FILE": str(_PACKED / "fonts.conf")}


def _unpack() -> None:
    """Unpack the package's Chromium below ``node_modules``. Two processes may do so at once: each has a folder of its own.

    Raises:
        NoChromium: the npm packages are not installed, or do not run here.
    """
    folder = _PACKED.with_name(f".chromium-{os.getpid()}")
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **_WITH_LIBRARIES, "TMPDIR": str(folder)}
    try:
        subprocess.run(["node", "-e", _UNPACK], cwd=ROOT, env=environment, check=True, capture_output=True)
        (folder / "fonts.conf").write_text(_FONTS.format(folder=_PACKED))
        folder.rename(_PACKED)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()
        raise NoChromium(f"Install Chromium or Chrome, set CHROME_PATH, or run: make node_modules/.stamp\n{reason}") from error
    except OSError:
        if not (_PACKED / "chromium").is_file():
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
