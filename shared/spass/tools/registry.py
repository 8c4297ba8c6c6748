"""Every built-in tool by name, in a table that costs no import: a tool's module is imported at its first use."""

import importlib
from collections.abc import Mapping
from enum import Flag, auto
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from spass.tools.base import Tool


class Trait(Flag):
    """What the file of an agent with a tool must or may say about the tool."""

    NONE = 0
    WORKSPACE = auto()
    """The agent needs a workspace."""
    GATED = auto()
    """The tool writes, and the file may demand a person's approval for it."""


class ToolEntry(NamedTuple):
    """The toolset of a tool, and its traits."""

    toolset: str
    traits: Trait = Trait.NONE


TOOLS: Final[Mapping[str, ToolEntry]] = {
    "calculator": ToolEntry("plain"),
    "current_datetime": ToolEntry("plain"),
    "think": ToolEntry("plain"),
    "llm": ToolEntry("models"),
    "code_interpreter": ToolEntry("code"),
    "web_search": ToolEntry("web"),
    "wikipedia_search": ToolEntry("wikipedia"),
    "wikipedia_summary": ToolEntry("wikipedia"),
    "rag_query": ToolEntry("knowledge"),
    "rag_index_list": ToolEntry("knowledge"),
    "rag_index_describe": ToolEntry("knowledge"),
    "rag_doc_list": ToolEntry("knowledge"),
    "rag_doc_get": ToolEntry("knowledge"),
    "rag_index_create": ToolEntry("knowledge", Trait.GATED),
    "rag_doc_append": ToolEntry("knowledge", Trait.GATED),
    "rag_doc_patch": ToolEntry("knowledge", Trait.GATED),
    "rag_doc_delete": ToolEntry("knowledge", Trait.GATED),
    "rag_index_delete": ToolEntry("knowledge", Trait.GATED),
    "delegate": ToolEntry("delegates", Trait.WORKSPACE),
    "memory_read": ToolEntry("settings"),
    "memory_write": ToolEntry("settings", Trait.GATED),
    "memory_store": ToolEntry("notes"),
    "memory_search": ToolEntry("notes"),
    "lineage_search": ToolEntry("lineage"),
    "read_file": ToolEntry("workspace", Trait.WORKSPACE),
    "list_directory": ToolEntry("workspace", Trait.WORKSPACE),
    "search_files": ToolEntry("workspace", Trait.WORKSPACE),
    "aider_edit": ToolEntry("editing", Trait.WORKSPACE | Trait.GATED),
}


def tools_of(toolset: str) -> tuple[str, ...]:
    """Return the names of the tools of ``toolset``."""
    return tuple(name for name, entry in TOOLS.items() if entry.toolset == toolset)


@cache
def load_tool(name: str) -> "type[Tool]":
    """Import the class of a tool: ``RagQuery`` of the module ``rag_query``."""
    tool: type[Tool] = getattr(importlib.import_module(f"spass.tools.builtin.{name}"), name.title().replace("_", ""))
    return tool
