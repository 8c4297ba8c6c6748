"""A folder with files, secrets and links, paths that a caller may ask to mount from it, and an oracle that judges them.

The oracle shares no code and no method with the gateway: the kernel resolves a path (by opening it), regular expressions match
names, and roots are recognized by device and inode.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

_BLOCKED: Final = re.compile(
    r"\.ssh|\.env|.*\.pem|.*\.key|id_rsa.*|id_ed25519.*|credentials.*|\.netrc|\.npmrc|\.pypirc"
    r"|\.gnupg|\.aws|\.azure|\.kube|\.docker|gcloud",
    re.IGNORECASE | re.DOTALL,
)
SECRET_NAMES: Final = (
    *(".ssh", ".env", "server.pem", ".pem", "tls.key", "id_rsa", "id_rsa.pub", "id_rsa_work", "id_ed25519", "id_ed25519-sk"),
    *("credentials", "credentials.json", "credentials_old", ".netrc", ".npmrc", ".pypirc", ".gnupg", ".aws", ".azure", ".kube"),
    *(".docker", "gcloud"),
)
HARMLESS_NAMES: Final = (
    *(
        "ssh",
        "env",
        ".environment",
        ".envrc",
        "pem",
        "key",
        "keys",
        "id_dsa",
        "my_credentials.txt",
        "netrc",
        "a.pem.txt",
        "key.d",
    ),
    *(
        "aws",
        "docker",
        "gcloud2",
        "x.PEMX",
        "Ünïcode",
        "with space",
        "comma,name",
        "-v",
        "--privileged",
        "$HOME",
        "a'b\"c",
        "日本",
    ),
)
_SUFFIXES: Final = ("", ":rw")


def build_world(folder: Path) -> Path:
    """Create the folder's content. Return the folder, resolved."""
    world = folder.resolve()
    for name in ("projects/app/src", "projects/kept", "shared/data", "outside/data", "projects-too"):
        (world / name).mkdir(parents=True)
    for name in (*SECRET_NAMES, *(_mixed_case(name) for name in SECRET_NAMES), *HARMLESS_NAMES):
        for parent in ("projects", "shared", "outside"):
            (world / parent / name).mkdir(exist_ok=True)
            (world / parent / name / "inner").write_text("x")
    for name in SECRET_NAMES:
        (world / "projects" / f"link to {name.strip('.')} folder").symlink_to(world / "projects" / name)
    for name, target in _links(world).items():
        (world / name).symlink_to(target)
    for name in ("a:b", "rw:ro", "two\nlines", "back\\slash", "tab\there", "bell\a", "zero\u200bwidth", "line\u2028end", "x:rw"):
        (world / "projects" / name).mkdir()
    os.mkfifo(world / "projects/fifo")
    os.mknod(world / "projects/daemon.sock", stat.S_IFSOCK | 0o600)
    (world / "projects/file.csv").write_text("a,b\n1,2\n")
    return world


def _links(world: Path) -> dict[str, str]:
    return {
        "projects/to app": "app",
        "projects/to outside": "../outside",
        "projects/to outside absolute": str(world / "outside"),
        "projects/to shared": "../shared/data",
        "projects/to kept": "kept",
        "projects/to root": "/",
        "projects/to proc": "/proc/self",
        "projects/to nothing": "nothing",
        "projects/loop": "loop",
        "projects/ping": "pong",
        "projects/pong": "ping",
        "projects/chain": "to outside/../projects/to outside",
        "outside/to projects": "../projects",
        "shared/to projects": "../projects/app",
    }


def _mixed_case(name: str) -> str:
    return "".join(letter.upper() if number % 2 else letter for number, letter in enumerate(name))


@dataclass(frozen=True)
class Rules:
    """An allow-list, as the oracle reads it: roots with ``read_only``, and further blocked names."""

    roots: Sequence[tuple[Path, bool]] | None
    names: Sequence[str] = ()


def written_paths() -> Iterator[str]:
    """Yield paths that are not below a world."""
    yield from (
        "",
        " ",
        "/",
        "//",
        "///",
        "/.",
        "/..",
        "/../..",
        "/./",
        ".",
        "..",
        "~",
        "~root",
        "$HOME",
        "data",
        "data:/etc",
        "C:\\",
        "\\",
    )
    yield from (
        "/proc",
        "/proc/self",
        "/proc/1/environ",
        "/proc/self/root",
        "/sys",
        "/sys/kernel",
        "/dev",
        "/dev/null",
        "/dev/shm",
        "/run",
    )
    yield from ("/proc/self/cwd", "/proc/self/fd", "/proc/../proc", "/dev/../sys", "//proc", "/tmp/../proc", "/no such folder")
    yield from (
        "/etc:/etc",
        "/etc:ro",
        "/etc:rw:rw",
        ":rw",
        "::",
        "/:rw",
        "/\0",
        "/etc\0",
        "/etc\n",
        "/\ud800",
        "/" + "a" * 5000,
        "a/" * 3000,
    )
    yield from ("/etc,ro", "/etc;x", "file:///etc", "volume", "./data", "../../etc", "-v", "--privileged", "/etc\\:/x")


def hostile_paths(world: Path) -> list[str]:
    """Return paths to ask for, by rule and by hand. Many must not be mounted."""
    paths = [*written_paths()]
    names = (*SECRET_NAMES, *(_mixed_case(name) for name in SECRET_NAMES), *HARMLESS_NAMES)
    for parent, name, tail in product(("projects", "shared", "outside"), names, ("", "/inner")):
        paths.append(f"{world}/{parent}/{name}{tail}")
    for name, tail in product(SECRET_NAMES, ("", "/inner")):
        paths.append(f"{world}/projects/link to {name.strip('.')} folder{tail}")
    links = [
        *_links(world),
        "projects/fifo",
        "projects/daemon.sock",
        "projects/file.csv",
        "projects/app",
        "projects/kept",
        "projects-too",
    ]
    for link, tail, suffix in product(links, ("", "/", "/.", "/..", "/src", "/data", "/../outside"), _SUFFIXES):
        paths.append(f"{world}/{link}{tail}{suffix}")
    for name, suffix in product(
        ("a:b", "rw:ro", "two\nlines", "back\\slash", "tab\there", "bell\a", "x:rw", "zero\u200bwidth"), _SUFFIXES
    ):
        paths.append(f"{world}/projects/{name}{suffix}")
    for place, suffix in product(
        ("projects", "shared", "outside", "projects/..", "projects/../outside", "shared/./data", "."), _SUFFIXES
    ):
        paths += [f"{world}/{place}{suffix}", f"/{world}/{place}{suffix}", f"{world}//{place}//{suffix}"]
    paths.append(f"{world}/projects/line\u2028end")
    return [*dict.fromkeys(paths)]


def allowed(given: str, rules: Rules) -> tuple[str, bool] | None:
    """Return the path to mount for ``given`` and whether it is writable, or None if nothing may be mounted."""
    writable = given[-3:] == ":rw"
    path = given[:-3] if writable else given
    if path[:1] != "/" or re.search(r"[:\\\x00-\x1f\x7f-\x9f\u200b\u2028\ud800-\udfff]", path):
        return None
    try:
        descriptor = os.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        real = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        mode = os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) or real == "/" or re.match(r"/(proc|sys|dev|run)(/|$)", real):
        return None
    if re.search(r"[:\\\x00-\x1f\x7f-\x9f\u200b\u2028]", real) or any(map(_BLOCKED.fullmatch, (path + "/" + real).split("/"))):
        return None
    if any(part.lower() in [name.lower() for name in rules.names] for part in (path + "/" + real).split("/")):
        return None
    around = _roots_around(real, rules)
    if rules.roots is not None and not around:
        return None
    below = [read_only for root, read_only in rules.roots or () if str(root).startswith(real + "/")]
    if writable and (not around or around[0] or any(below)):
        return None
    return real, writable


def _roots_around(real: str, rules: Rules) -> list[bool]:
    """Return ``read_only`` of the roots that are ``real`` or contain it, the innermost first."""
    found = []
    place = real
    while True:
        here = _identity(place)
        matching = [read_only for root, read_only in rules.roots or () if root.exists() and _identity(str(root)) == here]
        found += [any(matching)] if matching else []
        if place == "/":
            return found
        place = str(Path(place).parent)


def _identity(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_dev, status.st_ino
