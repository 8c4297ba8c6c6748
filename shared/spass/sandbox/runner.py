"""Run programs in containers that have no network, no capabilities and no writable root."""

import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from spass.core.messages import Json
from spass.core.slots import NoFreeSlot, Slots
from spass.sandbox.container_pipe import ContainerEffect, ContainerFailed, ContainerPipe, ContainerTimedOut, ContainerUnavailable
from spass.sandbox.mounts import Mount, read_allow_list, resolve_mounts
from spass.sandbox.orphans import new_name

DEFAULT_IMAGE: Final = "spass-sandbox:latest"
_ISOLATION: Final = (
    *("--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),  # noqa: S108 (in the container)
    *("--security-opt", "no-new-privileges", "--pids-limit", "256", "--memory", "1g"),
)
_CLIENT_VARIABLES: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"}
    | {"DBUS_SESSION_BUS_ADDRESS", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINER_HOST", "CONTAINER_CONNECTION"}
    | {"DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"}
)
"""The variables that the runtime's client may read. Podman would pass others, such as HTTP_PROXY, into the container."""
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


@dataclass(frozen=True)
class ContainerRunner:
    """Run containers of one image.

    ``timeout`` is in seconds and limits the life of one container. ``mount_allowlist_path`` is a file of JSON with the roots of
    mounts; without it no root restricts them. At most ``max_concurrent`` containers of this runner run at a time, and one of
    another tenant besides, see ``Slots``; others wait for at most ``timeout``. ``runtime`` is the program: docker or podman.
    """

    image: str = DEFAULT_IMAGE
    timeout: float = 300
    mount_allowlist_path: str = ""
    max_concurrent: int = 5
    runtime: str = "docker"
    _slots: Slots = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _IMAGE.fullmatch(self.image):
            raise ValueError(f"{self.image!r} is not the name of an image. Write a name such as {DEFAULT_IMAGE}.")
        if self.timeout <= 0 or self.max_concurrent < 1:
            raise ValueError(f"timeout ({self.timeout}) and max_concurrent ({self.max_concurrent}) must be greater than 0.")
        object.__setattr__(self, "_slots", Slots(self.max_concurrent))

    def check(self, workspace: str, mounts: Sequence[str]) -> tuple[str, tuple[Mount, ...]]:
        """Return the path of the runtime and the resolved mounts.

        Raises:
            ContainerUnavailable: the runtime is missing.
            MountRefused: a mount or the allow-list is refused.
            ValueError: the workspace is not an absolute path.
        """
        runtime = shutil.which(self.runtime)
        if runtime is None:
            raise ContainerUnavailable(f"The container runtime {self.runtime!r} is not on the PATH. Install docker or podman.")
        if workspace and not (workspace.startswith("/") and workspace.isprintable()):
            raise ValueError(f"The workspace {workspace!r} must be an absolute path in the container.")
        return runtime, resolve_mounts(mounts, read_allow_list(self.mount_allowlist_path))

    async def run(
        self,
        payload: Mapping[str, Json],
        *,
        workspace: str = "",
        mounts: Sequence[str] = (),
        secrets: Mapping[str, str] | None = None,
    ) -> dict[str, Json]:
        """Run one container and return its answer. Its standard input is ``payload`` with ``workspace``, the folder in the
        container in which it starts, and ``secrets``, as one line of JSON. All these containers are of one tenant, which has no
        name.

        Raises:
            ContainerFailed: the runtime is missing, or the container failed. ``ContainerTimedOut`` says that it took too long.
            MountRefused: a mount or the allow-list is refused.
            ValueError: the workspace is not an absolute path.
        """
        async with self.open(payload, tenant_id="", workspace=workspace, mounts=mounts, secrets=secrets) as container:
            container.end_input()
            message = await container.receive()
            if isinstance(message, ContainerEffect):
                raise ContainerFailed(
                    "The container asked for an effect, which only a run of an agent performs. Use SandboxedAgent instead."
                )
            return message.answer

    @asynccontextmanager
    async def open(
        self,
        payload: Mapping[str, Json],
        *,
        tenant_id: str,
        workspace: str = "",
        mounts: Sequence[str] = (),
        secrets: Mapping[str, str] | None = None,
    ) -> AsyncIterator[ContainerPipe]:
        """Start a container, send it its payload, and remove it at the end. Containers that wait are served by ``tenant_id`` in
        turn. See ``run`` for the other arguments and the errors."""
        runtime, resolved = self.check(workspace, mounts)
        given = dict(secrets or {})
        name = new_name()
        volumes = [argument for mount in resolved for argument in ("-v", mount.argument)]
        folder = ("-w", workspace) if workspace else ()
        container = ContainerPipe(
            name,
            [runtime, "run", "--rm", "-i", "--name", name, *_ISOLATION, *folder, *volumes, self.image],
            environment={name: value for name, value in os.environ.items() if name in _CLIENT_VARIABLES},
            mounts=resolved,
            secrets=tuple(given.values()),
            timeout=self.timeout,
        )
        try:
            await self._slots.acquire(tenant_id, self.timeout)
        except NoFreeSlot:
            message = f"No container became free: {self.max_concurrent} are running. Try again later, or raise max_concurrent."
            raise ContainerTimedOut(message) from None
        try:
            try:
                await container.start({**payload, "workspace": workspace, "secrets": given})
                yield container
            finally:
                await container.close()
        finally:
            self._slots.release(tenant_id)
