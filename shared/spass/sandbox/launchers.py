"""Select the place where model-written code runs."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from spass.core.code_calls import Interpreter, Sandbox
from spass.core.errors import SandboxUnavailable
from spass.core.text_checks import end_sentence, suggest_name

if TYPE_CHECKING:  # these import asyncio's subprocesses, which only a call needs
    from spass.sandbox.launcher import Launcher, TenantFunction

    ConnectFunction: TypeAlias = Callable[[str], TenantFunction]

VARIABLE: Final = "SPASS_SANDBOX"
FUNCTION_VARIABLE: Final = "SPASS_SANDBOX_FUNCTION"
_AUTOMATIC: Final = "auto"
_NONE: Final = "none"
_CREATE_RULESET: Final = 444
_ASK_VERSION: Final = 1
_MACHINES: Final = ("x86_64", "aarch64")
_DOCKER_SOCKET: Final = "/var/run/docker.sock"


class UnknownSandbox(ValueError):
    """``SPASS_SANDBOX`` is not the name of a launcher. The message names the launchers."""


class NoSandbox:
    """Refuse all code. ``unavailable`` is the reason, for people."""

    name = "none"

    def __init__(self, unavailable: str) -> None:
        self.unavailable = unavailable

    def open(self, tenant_id: str, owner_id: str) -> Interpreter:  # noqa: ARG002
        """Raise SandboxUnavailable."""
        raise SandboxUnavailable(f"This gateway cannot run code: {self.unavailable}")


def no_sandbox() -> NoSandbox:
    """Return the sandbox of a process that runs no code."""
    return NoSandbox("this process has no sandbox.")


class LaunchedSandbox:
    """A sandbox whose children a launcher starts. It imports the launcher when the first code runs."""

    unavailable: Final = None

    def __init__(self, name: str, create: "Callable[[], Launcher]") -> None:
        self.name: Final = name
        self._create: Final = create

    @cached_property
    def _launcher(self) -> "Launcher":
        return self._create()

    def open(self, tenant_id: str, owner_id: str) -> Interpreter:
        from spass.sandbox.interpreter import TurnInterpreter

        return TurnInterpreter(self._launcher, tenant_id, owner_id)


def select_sandbox(environment: Mapping[str, str] = os.environ, connect: "ConnectFunction | None" = None) -> Sandbox:
    """Return the sandbox that ``SPASS_SANDBOX`` selects: ``lambda``, ``process``, ``container``, ``none``, or ``auto`` (the
    default), the first of them that is available. This starts nothing. ``connect`` returns the function of a name.

    Raises:
        UnknownSandbox: the variable has another value.
    """
    choice = chosen_launcher(environment)
    if choice == _NONE:
        return NoSandbox(f"{VARIABLE} is none. Set it to auto to run code.")
    reasons = []
    for name, select in _LAUNCHERS.items():
        if choice in (_AUTOMATIC, name):
            selected = select(environment, connect)
            if not isinstance(selected, str):
                return LaunchedSandbox(name, selected)
            reasons.append(f"{name}: {selected}")
    return NoSandbox(f"{'; '.join(reasons)}.")


def chosen_launcher(environment: Mapping[str, str]) -> str:
    """Return the value of ``SPASS_SANDBOX``. Raise UnknownSandbox if it is not one of the names."""
    choice = environment.get(VARIABLE) or _AUTOMATIC
    names = (_AUTOMATIC, *_LAUNCHERS, _NONE)
    if choice not in names:
        problem = end_sentence(f"{VARIABLE}={choice!r} is not a sandbox{suggest_name(choice, names)}")
        raise UnknownSandbox(f"{problem} Use one of: {', '.join(names)}.")
    return choice


def _select_lambda(environment: Mapping[str, str], connect: "ConnectFunction | None") -> "Callable[[], Launcher] | str":
    name = environment.get(FUNCTION_VARIABLE)
    if connect is None:
        return "this process calls no functions"
    if not name:
        return f"{FUNCTION_VARIABLE} names no function"
    if environment.get("AWS_ENDPOINT_URL") or environment.get("AWS_ENDPOINT_URL_LAMBDA"):
        return "an emulated function runs the code of all tenants in one unconfined process"

    def create() -> "Launcher":
        from spass.sandbox.lambda_ import LambdaLauncher

        return LambdaLauncher(connect(name))

    return create


def _select_process(_: Mapping[str, str], _connect: "ConnectFunction | None") -> "Callable[[], Launcher] | str":
    if missing := missing_for_processes():
        return missing

    def create() -> "Launcher":
        from spass.sandbox.process import ProcessLauncher

        return ProcessLauncher()

    return create


@cache
def missing_for_processes() -> str | None:
    """Return what this machine lacks for the launcher ``process``, for people, or None."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES or sys.maxsize < 2**32:
        return "child processes are confined on 64-bit Linux on x86-64 and arm64 only"
    import ctypes

    version: int = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return None if version > 0 else "the kernel has no Landlock, or does not use it"


def _select_container(environment: Mapping[str, str], _connect: "ConnectFunction | None") -> "Callable[[], Launcher] | str":
    runtime = _find_runtime(environment)
    if runtime is None:
        return "neither docker nor podman is on the PATH; install one of them, and run `make sandbox-image`"

    def create() -> "Launcher":
        from spass.sandbox.container_child import ContainerLauncher

        return ContainerLauncher.with_runtime(runtime)

    return create


def _find_runtime(environment: Mapping[str, str]) -> str | None:
    """Return docker or podman, whichever is on the PATH; of both, docker if it has a daemon here. Start nothing."""
    found = [name for name in ("docker", "podman") if shutil.which(name, path=environment.get("PATH", ""))]
    has_daemon = environment.get("DOCKER_HOST") or os.path.exists(_DOCKER_SOCKET)  # noqa: PTH110
    return found[0 if has_daemon else -1] if found else None


_LAUNCHERS: "Final[Mapping[str, Callable[[Mapping[str, str], ConnectFunction | None], Callable[[], Launcher] | str]]]" = {
    "lambda": _select_lambda,
    "process": _select_process,
    "container": _select_container,
}
"""By name, in the order of preference: returns what creates the launcher, or why it is not available."""
