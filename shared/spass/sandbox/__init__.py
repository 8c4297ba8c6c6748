"""Run code that models write: in confined child processes, functions and containers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spass.sandbox.container_pipe import ContainerFailed, ContainerTimedOut
    from spass.sandbox.mounts import MountRefused
    from spass.sandbox.runner import ContainerRunner

__all__ = ["ContainerFailed", "ContainerRunner", "ContainerTimedOut", "MountRefused"]

_MODULES = {
    "ContainerFailed": "container_pipe",
    "ContainerRunner": "runner",
    "ContainerTimedOut": "container_pipe",
    "MountRefused": "mounts",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: most processes run no container."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
