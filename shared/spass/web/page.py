"""The browser page: the files of the folder ``ui/``, and the headers under which a browser loads and runs them."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from spass.aws.upload_origin import upload_origin
from spass.core.errors import RouteNotFound
from spass.web.etags import etag, has_content

PAGE: Final = "index.html"
_MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",  # API Gateway compresses files
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""The headers of every answer of the page's routes."""


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    sha256: str


def page(request: Request) -> Response:
    """Return the page itself.

    Raises:
        RouteNotFound: the path ends with a slash, from which the page's relative addresses would lead nowhere.
        InvalidRequest: ``If-None-Match`` is malformed.
    """
    policy = content_security_policy(upload_origin(os.environ))
    return _answer(request, PAGE, {"Content-Security-Policy": policy})


def asset(request: Request, name: str) -> Response:
    """Return a file of the page.

    Raises:
        RouteNotFound: the page has no file of this name, or the path ends with a slash.
        InvalidRequest: ``If-None-Match`` is malformed.
    """
    if name == PAGE or name not in _names():
        raise RouteNotFound("The page has no such file; GET /ui shows the page.")
    return _answer(request, name, {})


def content_security_policy(upload_origin: str | None) -> str:
    """Return the policy of the page. ``upload_origin`` is the only foreign origin that it may send to."""
    connect = " ".join(filter(None, ["'self'", upload_origin]))
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src {connect}; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types lit-html dompurify"
    )


def _answer(request: Request, name: str, headers: Mapping[str, str]) -> Response:
    if request.scope["raw_path"].endswith(b"/"):
        raise RouteNotFound("The address ends with a slash; GET /ui shows the page.")
    file = _load(name)
    headers = {**HEADERS, **headers, "ETag": etag(file.sha256)}
    if has_content(request.headers, file.sha256):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=_MEDIA_TYPES[Path(name).suffix], headers=headers)


@cache
def _folder() -> Path:
    """Return the folder of the page: beside the package ``spass`` in a function's bundle, else in the repository's root."""
    return next(folder for root in Path(__file__).parents[2:4] if (folder := root / "ui").is_dir())


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in _folder().iterdir() if path.suffix in _MEDIA_TYPES)


@cache
def _load(name: str) -> _File:
    content = (_folder() / name).read_bytes()
    return _File(content, hashlib.sha256(content).hexdigest())
