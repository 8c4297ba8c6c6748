"""Services that a chat must not use."""

from typing import NoReturn


def no_toolbox() -> NoReturn:
    raise AssertionError("no tenant has server tools")


def no_agents() -> NoReturn:
    raise AssertionError("no chat names an agent")
