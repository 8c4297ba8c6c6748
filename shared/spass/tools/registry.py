"""Every built-in tool by name, in a table that costs no import: a tool's module is imported at its first use."""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from spass.tools.base import Tool


class ToolEntry(NamedTuple):
    """The toolset of a tool. A ``gated`` tool writes, so an agent's file may demand a person's approval of its calls. If it
    ``needs_workspace``, only an agent with a workspace can have it. ``module`` of ``builtin`` has its class; by default the one
    that is named like the tool."""

    toolset: str
    gated: bool = False
    needs_workspace: bool = False
    module: str = ""


TOOLS: Final[Mapping[str, ToolEntry]] = {
    "calculator": ToolEntry("plain"),
    "current_datetime": ToolEntry("plain", module="plain"),
    "think": ToolEntry("plain", module="plain"),
    "llm": ToolEntry("models"),
    "code_interpreter": ToolEntry("code"),
    "web_search": ToolEntry("web"),
    "wikipedia_search": ToolEntry("wikipedia", module="wikipedia"),
    "wikipedia_summary": ToolEntry("wikipedia", module="wikipedia"),
    "rag_query": ToolEntry("knowledge", module="knowledge"),
    "rag_index_list": ToolEntry("knowledge", module="knowledge"),
    "rag_index_describe": ToolEntry("knowledge", module="knowledge"),
    "rag_doc_list": ToolEntry("knowledge", module="knowledge"),
    "rag_doc_get": ToolEntry("knowledge", module="knowledge"),
    "rag_index_create": ToolEntry("knowledge", gated=True, module="knowledge_writes"),
    "rag_doc_append": ToolEntry("knowledge", gated=True, module="knowledge_writes"),
    "rag_doc_patch": ToolEntry("knowledge", gated=True, module="knowledge_writes"),
    "rag_doc_delete": ToolEntry("knowledge", gated=True, module="knowledge_writes"),
    "rag_index_delete": ToolEntry("knowledge", gated=True, module="knowledge_writes"),
    "delegate": ToolEntry("delegates", needs_workspace=True),
    "memory_read": ToolEntry("settings", module="shared_memory"),
    "memory_write": ToolEntry("settings", gated=True, module="shared_memory"),
    "memory_store": ToolEntry("notes", module="notes"),
    "memory_search": ToolEntry("notes", module="notes"),
    "lineage_search": ToolEntry("lineage"),
    "read_file": ToolEntry("workspace", needs_workspace=True, module="workspace_reading"),
    "list_directory": ToolEntry("workspace", needs_workspace=True, module="workspace_reading"),
    "search_files": ToolEntry("workspace", needs_workspace=True, module="workspace_reading"),
    "aider_edit": ToolEntry("editing", gated=True, needs_workspace=True),
}


@cache
def tools_of(toolset: str) -> tuple[str, ...]:
    """Return the names of the tools of ``toolset``."""
    return tuple(name for name, entry in TOOLS.items() if entry.toolset == toolset)


@cache
def load_tool(name: str) -> "type[Tool]":
    """Import the class of a tool: ``RagQuery`` for ``rag_query``."""
    module = importlib.import_module(f"spass.tools.builtin.{TOOLS[name].module or name}")
    tool: type[Tool] = getattr(module, name.title().replace("_", ""))
    return tool
