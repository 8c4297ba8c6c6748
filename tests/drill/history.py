"""The history of the drill: sessions, indices, workspaces and managed agents, written through the gateway's own routes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import httpx

from spass.aws.clients import Aws
from spass.core.ids import TenantId
from spass.models.types import CallContext, ChatRequest
from spass.store.tenant_store import TenantStore
from spass.testing.gateway import ScriptedServices, gateway_client
from spass.testing.model import ScriptedModel
from tests.functions.gateway import write_operators_files

TENANT: Final = TenantId("demo")
USER: Final = "ada.lovelace"
SECRET: Final = "The planted text of the drill"
"""In every message, document and file. The commands of an operator print neither it nor the user."""

_MODULES: Final = (
    *("sessions.create", "sessions.append", "sessions.history", "sessions.delete"),
    *("rag.replace", "rag.documents_list", "rag.delete"),
    *("workspaces.file_put", "workspaces.archive_get"),
    *("managed.create", "managed.message_send", "managed.messages"),
)
_LONG: Final = "Write much."
_LONG_BYTES: Final = 360_000  # more than an item holds
_TEXT_BYTES: Final = 20_000  # more than the item of a managed agent's message holds


def _answer(request: ChatRequest, _: CallContext) -> str:
    return f"{SECRET}. " * (_LONG_BYTES // len(SECRET)) if request.messages[-1].content == _LONG else f"{SECRET}: yes."


@dataclass(frozen=True, slots=True)
class History:
    """A gateway over one table, as its user ``USER`` sees it."""

    client: httpx.AsyncClient
    store: TenantStore

    @classmethod
    @asynccontextmanager
    async def over(cls, aws: Aws, folder: Path) -> "AsyncIterator[History]":
        """Run a gateway over the table and bucket of ``aws``. ``folder`` is empty and gets its files."""
        services = ScriptedServices(write_operators_files(folder), ScriptedModel(_answer), aws)
        routers = [import_module(f"functions.{module}").router for module in _MODULES]
        async with gateway_client(routers, services, "demo-token") as client:
            client.headers["SPASS-User-Id"] = USER
            yield cls(client, aws.for_tenant(TENANT))
        await services.aclose()
        await asyncio.sleep(0)  # the connections close in the next iteration

    async def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request, which must succeed."""
        answer = await self.client.request(method, path, **request)
        if not answer.is_success:
            raise RuntimeError(f"{method} {path} was answered with {answer.status_code}: {answer.text[:500]}")
        return answer

    async def session(self, *, long: bool = False) -> str:
        """Write a session of three turns and return its path. With ``long``, the middle one is an object."""
        created = await self.call("POST", "/a1/agents/plain/sessions")
        path = f"/a1/agents/plain/sessions/{created.json()['id']}"
        for message in ("Begin.", _LONG if long else "Go on.", "End."):
            await self.call("POST", f"{path}/messages", json={"message": message})
        return path

    async def index(self, name: str) -> str:
        documents = [{"id": f"d{number}", "text": f"{SECRET} {number}"} for number in range(3)]
        await self.call("POST", f"/a1/rag/indices/{name}/documents", json={"documents": documents})
        return f"/a1/rag/indices/{name}"

    async def workspace(self, name: str) -> str:
        """Write a workspace of three versions."""
        for number in range(3):
            await self.call(
                "PUT",
                f"/a1/workspaces/{name}/file",
                params={"path": f"file{number}.md"},
                content=f"{SECRET} {number}",
                headers={"Content-Type": "application/octet-stream"},
            )
        return f"/a1/workspaces/{name}"

    async def agent(self) -> str:
        """Make a managed agent with two long messages."""
        created = await self.call("POST", "/v1/managed-agents", json={"name": "drill", "agent": "simple"})
        path = f"/v1/managed-agents/{created.json()['id']}"
        for _ in range(2):
            await self.call("POST", f"{path}/messages", json={"content": f"{SECRET}. " * (_TEXT_BYTES // len(SECRET))})
        return path


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer to a user who reads a subject: the status, and the bytes that do not change from one answer to the next."""

    status: int
    content: bytes


async def read(history: History, paths: Mapping[str, str]) -> Mapping[str, Reading]:
    """Return what the user reads of each of the subjects at ``paths``, by their names."""

    async def one(path: str) -> Reading:
        tail = {"a1/agents": "/messages", "a1/rag": "/documents", "a1/workspaces": "/archive", "v1/managed-agents": "/messages"}
        kind = next(kind for kind in tail if path.startswith(f"/{kind}"))
        answer = await history.client.get(path + tail[kind])
        return Reading(answer.status_code, answer.content)

    return dict(zip(paths, await asyncio.gather(*map(one, paths.values())), strict=True))
