"""The key ``sandbox`` of an agent's file: the container in which the agent runs."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from spass.core.errors import SandboxUnavailable

MAX_TIMEOUT: Final = 24 * 3600
NOT_DEPLOYED: Final = "a deployed gateway starts no containers; remove this key, or run the agent on a machine of your own"


class ContainerSettings(BaseModel):
    """The container of an agent. ``timeout`` is in seconds, ``mount_allowlist`` the path of a file, and ``workspace`` that of a
    folder in the container."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")] = "spass-sandbox:latest"
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT)] = 300
    runtime: Literal["docker", "podman"] = "docker"
    mount_allowlist: str = ""
    mounts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    workspace: str = ""

    def check(self) -> None:
        """Check whether this machine has the runtime.

        Raises:
            SandboxUnavailable: it does not.
        """
        from shutil import which

        if which(self.runtime) is None:
            message = f"This gateway cannot run this agent: it runs in a container, and {self.runtime} is not installed."
            raise SandboxUnavailable(message)
