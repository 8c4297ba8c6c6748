"""Spass: a gateway for LLM agents. ``from spass import Spass`` is its client.

The client is imported at its first use: a function of the gateway must not import httpx because of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spass.sdk import Spass as Spass

__all__ = ["Spass"]


def __getattr__(name: str) -> object:
    if name == "Spass":
        return import_module("spass.sdk").Spass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
