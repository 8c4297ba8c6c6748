"""The browser page, as ``local/page_build.py`` has built it, and the headers under which a browser loads and runs it."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from spass.aws.upload_origin import upload_origin
from spass.core.errors import PageNotBuilt, RouteNotFound
from spass.web.file_responses import etag, has_content

_MANIFESTS: Final = tuple(root / ".page" / "manifest.json" for root in Path(__file__).parents[2:4])
"""Where a build is: beside the package ``spass`` in a function's bundle, else in the repository's root."""
_CURRENT: Final = "no-cache"
_FOR_EVER: Final = "public, max-age=31536000, immutable"
HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": _CURRENT,
    "Vary": "Accept-Encoding",  # API Gateway compresses files
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""The headers of every answer of the page's routes. The name of a file contains a hash of its content: a browser may keep it."""


@dataclass(frozen=True, slots=True)
class _Build:
    """The name of the page, and the media types of its files."""

    folder: Path
    page: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    sha256: str


def page(request: Request) -> Response:
    """Return the page itself.

    Raises:
        RouteNotFound: the path ends with a slash, from which the page's relative addresses would lead nowhere.
        InvalidRequest: ``If-None-Match`` is malformed.
        PageNotBuilt: the page is not built.
    """
    build = _build()
    policy = content_security_policy(upload_origin(os.environ))
    return _answer(request, build.folder / build.page, "text/html", {"Content-Security-Policy": policy})


def asset(request: Request, name: str) -> Response:
    """Return a file of the page.

    Raises:
        RouteNotFound: the page has no file of this name, or the path ends with a slash.
        InvalidRequest: ``If-None-Match`` is malformed.
        PageNotBuilt: the page is not built.
    """
    build = _build()
    if name not in build.files:
        raise RouteNotFound("The page has no such file; GET /ui shows the page.")
    return _answer(request, build.folder / name, build.files[name], {"Cache-Control": _FOR_EVER})


def content_security_policy(upload_origin: str | None) -> str:
    """Return the policy of the page. ``upload_origin`` is the only foreign origin that it may send to."""
    connect = " ".join(filter(None, ["'self'", upload_origin]))
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src {connect}; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types lit-html dompurify"
    )


def _answer(request: Request, path: Path, media_type: str, headers: Mapping[str, str]) -> Response:
    if request.scope["raw_path"].endswith(b"/"):
        raise RouteNotFound("The address ends with a slash; GET /ui shows the page.")
    file = _load(path)
    headers = {**HEADERS, **headers, "ETag": etag(file.sha256)}
    if has_content(request.headers, file.sha256):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=media_type, headers=headers)


def _build() -> _Build:
    """Return the newest build. `make run` builds anew while it serves. Raise PageNotBuilt if there is none."""
    for manifest in _MANIFESTS:
        try:
            return _read(manifest, manifest.stat().st_mtime_ns)
        except FileNotFoundError:
            continue
    raise PageNotBuilt("The page is not built on this machine; everything else works. To build it, run: make page")


@lru_cache(maxsize=1)
def _read(manifest: Path, _modified: int) -> _Build:
    described = json.loads(manifest.read_bytes())
    return _Build(manifest.parent, described["page"], described["files"])


@lru_cache(maxsize=64)
def _load(path: Path) -> _File:
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # a newer build has removed it
        raise RouteNotFound("The page has no such file; GET /ui shows the page.") from None
    return _File(content, hashlib.sha256(content).hexdigest())
