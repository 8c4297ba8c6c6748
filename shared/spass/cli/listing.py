"""`spass kinds`, `spass agents` and `spass tools`: lists with aligned columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from spass.cli.terminal import write
from spass.sdk import Spass


def list_kinds(client: Spass) -> None:
    """List the kinds. The description of one that is not available is the reason."""
    print_rows([(kind.key, kind.description if kind.available else f"not available: {kind.reason}") for kind in client.kinds()])


def list_agents(client: Spass) -> None:
    print_rows([(agent.name, agent.kind, agent.model, agent.description) for agent in client.agents()])


def list_tools(client: Spass) -> None:
    print_rows([(tool.function.name, tool.category, _first_line(tool.function.description)) for tool in client.tools()])


LISTINGS: Final[Mapping[str, Callable[[Spass], None]]] = {"kinds": list_kinds, "agents": list_agents, "tools": list_tools}


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Write rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
