"""The browser page: the files of the folder ``ui/``, and the headers under which a browser loads and runs them."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from spass.core.errors import RouteNotFound

_FOLDER: Final = Path(__file__).parents[3] / "ui"
PAGE: Final = "index.html"
_MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    etag: str


def page(request: Request) -> Response:
    """Return the page itself."""
    return _answer(request, PAGE, {"Content-Security-Policy": content_security_policy(upload_origin(os.environ))})


def asset(request: Request, name: str) -> Response:
    """Return a file of the page.

    Raises:
        RouteNotFound: the page has no file of this name.
    """
    if name == PAGE or name not in _files():
        raise RouteNotFound("The page has no such file; GET /ui shows the page.")
    return _answer(request, name, {})


def content_security_policy(upload_origin: str) -> str:
    """Return the policy of the page. ``upload_origin`` is the only foreign origin that it may send to."""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' {upload_origin}; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types lit-html dompurify"
    )


def upload_origin(environment: Mapping[str, str]) -> str:
    """Return the origin of the forms that ``aws/uploads.py`` signs."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        parts = urlsplit(endpoint)
        return f"{parts.scheme}://{parts.netloc}"
    return f"https://{environment['SPASS_BUCKET']}.s3.{environment['AWS_REGION']}.amazonaws.com"


def _answer(request: Request, name: str, headers: Mapping[str, str]) -> Response:
    file = _files()[name]
    headers = {**_HEADERS, **headers, "ETag": file.etag}
    if file.etag in request.headers.get("If-None-Match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=_MEDIA_TYPES[Path(name).suffix], headers=headers)


@cache
def _files() -> Mapping[str, _File]:
    found = [path for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES]
    return {path.name: _load(path) for path in found}


def _load(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
