"""Split the path of a request behind API Gateway into the prefix before the API and the API's own part."""

from typing import NamedTuple
from urllib.parse import unquote

from spass.web.edge import normal_path


class RequestPath(NamedTuple):
    """A path as ASGI defines it: ``root_path`` is the prefix before the API (a stage, a base path), ``path`` is the whole."""

    root_path: str
    path: str


def split_path(*, path: str, full_path: str, resource: str) -> RequestPath:
    """Split the path of a request by the resource it matched, which has as many segments as the API's own part, unless its last
    parameter is greedy (``{name+}``).

    ``path`` is that of the event, ``full_path`` that of its request context (with the stage, or the base path of a custom
    domain), ``resource`` the matched template. All are as sent, percent-escapes, a trailing slash and doubled leading slashes
    included.
    """
    path, full_path = normal_path(path), normal_path(full_path)
    if resource.endswith("+}"):
        own = path[max(0, path.find(resource[: resource.rindex("{")])) :]
    else:
        count = resource.rstrip("/").count("/")
        segments = path.split("/")
        own = "/" + "/".join(segments[-count:]) if 0 < count < len(segments) else path
    root = full_path.removesuffix(own) if full_path.endswith(own) else ""
    root = unquote(root.rstrip("/"))
    return RequestPath(root, root + unquote(own))
