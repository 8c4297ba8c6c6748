"""Swagger UI from the files of a pinned package, so that ``/docs`` loads nothing from other hosts and works offline."""

import base64
import hashlib
import html
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import HTMLResponse, Response

from spass.core.errors import RouteNotFound

SCRIPT: Final = "swagger-ui-bundle.js"
STYLE: Final = "swagger-ui.css"

_PACKAGE: Final = "drf_spectacular_sidecar"
_FOLDER: Final = Path("static", _PACKAGE, "swagger-ui-dist")
_ASSETS: Final[Mapping[str, str]] = {"script": SCRIPT, "style": STYLE}
_SECURITY_HEADERS: Final[Mapping[str, str]] = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_MEDIA_TYPES: Final[Mapping[str, str]] = {SCRIPT: "text/javascript", STYLE: "text/css"}
# The page adds a file's digest to its address, so the content at an address never changes.
_CACHE_CONTROL: Final = "public, max-age=31536000, immutable"

# By default the page would send the address of the API's description to Swagger's validator.
_SCRIPT: Final = (
    "SwaggerUIBundle({dom_id: '#swagger-ui', url: document.body.dataset.openapi, deepLinking: true, validatorUrl: null});"
)
_SCRIPT_SHA256: Final = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; script-src 'self' 'sha256-{_SCRIPT_SHA256}'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{style}">
</head>
<body data-openapi="{openapi}">
<div id="swagger-ui"></div>
<script src="{script}"></script>
<script>{start}</script>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    digest: str


def page(*, title: str, openapi: str, docs: str) -> Response:
    """Return the page that shows the API's description at ``openapi``. The files of the page are below its address ``docs``."""
    addresses = {"openapi": openapi, **{name: f"{docs}/{file}?v={_load_file(file).digest}" for name, file in _ASSETS.items()}}
    text = _PAGE.format(
        title=html.escape(title), start=_SCRIPT, **{name: html.escape(address) for name, address in addresses.items()}
    )
    return HTMLResponse(
        text, headers={**_SECURITY_HEADERS, "Content-Security-Policy": _CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}
    )


def file(name: str) -> Response:
    """Return the file ``name`` of the page. Raise RouteNotFound if the page has no file of this name."""
    if name not in _MEDIA_TYPES:
        raise RouteNotFound("There is no such file; GET /docs shows the page.")
    return Response(
        _load_file(name).content, media_type=_MEDIA_TYPES[name], headers={**_SECURITY_HEADERS, "Cache-Control": _CACHE_CONTROL}
    )


@cache
def _load_file(name: str) -> _File:
    package = importlib.util.find_spec(_PACKAGE)  # does not import it
    if package is None or not package.submodule_search_locations:
        raise RuntimeError(f"the package {_PACKAGE} is not installed")
    content = Path(package.submodule_search_locations[0], _FOLDER, name).read_bytes()
    return _File(content, hashlib.sha256(content).hexdigest()[:16])
