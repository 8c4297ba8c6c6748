"""Split the path of a request behind API Gateway into the prefix before the API and the API's own part."""

from typing import NamedTuple
from urllib.parse import unquote

from spass.web.edge import normalize_path


class RequestPath(NamedTuple):
    """A path as ASGI defines it: ``root_path`` is the prefix before the API (a stage, a base path), ``path`` the whole path."""

    root_path: str
    path: str


def split_path(path: str, full_path: str | None, resource: str | None) -> RequestPath:
    """Split the path of a request where the API's own part begins. That part has as many segments as ``resource``, unless the
    last parameter of ``resource`` is greedy (``{name+}``).

    ``path`` is the path of the event. ``full_path`` is the path of its request context, which begins with the stage or with the
    base path of a custom domain. ``resource`` is the matched template. Without them, ``path`` takes their place. The paths are as
    the client sent them: with percent-escapes, a trailing slash and repeated leading slashes.
    """
    if resource == "/":  # the whole path is the prefix
        root = unquote(normalize_path(full_path or path).rstrip("/"))
        return RequestPath(root, f"{root}/")
    resource = resource or path
    path, full_path = normalize_path(path), normalize_path(full_path or path)
    if resource.endswith("+}"):
        api_path = path[max(0, path.find(resource[: resource.rindex("{")])) :]
    else:
        count = resource.rstrip("/").count("/")
        segments = path.split("/")
        api_path = "/" + "/".join(segments[-count:]) if 0 < count < len(segments) else path
    root = full_path.removesuffix(api_path) if full_path.endswith(api_path) else ""
    root = unquote(root.rstrip("/"))
    return RequestPath(root, root + unquote(api_path))
