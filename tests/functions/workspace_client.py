"""A client of the routes of one workspace."""

import io
import zipfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.functions.gateway import Gateway, Reply

FILE = {"Content-Type": "application/octet-stream"}
ARCHIVE = {"Content-Type": "application/zip"}


def pack(files: Mapping[str, str | bytes]) -> bytes:
    """Return a zip of ``files``."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, body in files.items():
            archive.writestr(path, body)
    return content.getvalue()


class WorkspaceClient:
    """Sends requests as user ``ada`` of tenant ``demo`` unless the ``caller`` (token, user) is another one."""

    def __init__(self, gateway: Gateway, workspace: str = "site", *, token: str = "demo-token", user: str = "ada") -> None:
        self.gateway = gateway
        self.at = f"/a1/workspaces/{workspace}"
        self._token, self._user = token, user

    def send(
        self,
        method: str,
        tail: str = "",
        query: Mapping[str, object] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: object = None,
        raw: bytes | None = None,
    ) -> Reply:
        target = self.at + tail + (f"?{urlencode(query)}" if query else "")
        return self.gateway.send(method, target, token=self._token, user=self._user, headers=headers, body=body, raw=raw)

    def put(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        return self.send("PUT", "/file", {"path": path}, raw=body, headers={**FILE, **(headers or {})})

    def put_archive(self, files: Mapping[str, bytes], **query: str) -> Reply:
        return self.send("PUT", "/archive", query, raw=pack(files), headers=ARCHIVE)

    def write(self, path: str, body: bytes) -> int:
        """Write a file, which must succeed, and return the version."""
        reply = self.put(path, body)
        assert reply.status == 200, reply
        return int(reply.json["version"])

    def read(self, path: str, **query: object) -> bytes:
        """Return a file, which must exist."""
        reply = self.send("GET", "/file", {"path": path, **query})
        assert reply.status == 200, reply
        return reply.content

    def paths(self, **query: object) -> list[str]:
        """Return the paths of a listing."""
        reply = self.send("GET", "/tree", query)
        assert reply.status == 200, reply
        return [entry["path"] for entry in reply.json["entries"]]

    def json(self, tail: str = "", **query: object) -> Any:
        reply = self.send("GET", tail, query)
        assert reply.status == 200, reply
        return reply.json
