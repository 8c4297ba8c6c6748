"""Every tool by name. A tool's module is imported at its first use, so the names alone cost no import."""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spass.tools.base import Tool

TOOLS: Final[Mapping[str, str]] = {
    "calculator": "spass.tools.builtin.calculator:Calculator",
    "current_datetime": "spass.tools.builtin.current_datetime:CurrentDatetime",
    "think": "spass.tools.builtin.think:Think",
    "llm": "spass.tools.builtin.llm:Llm",
    "code_interpreter": "spass.tools.builtin.code_interpreter:CodeInterpreter",
    "web_search": "spass.tools.builtin.web_search:WebSearch",
    "wikipedia_search": "spass.tools.builtin.wikipedia_search:WikipediaSearch",
    "wikipedia_summary": "spass.tools.builtin.wikipedia_summary:WikipediaSummary",
    "rag_query": "spass.tools.builtin.rag_query:RagQuery",
    "rag_index_list": "spass.tools.builtin.rag_index_list:RagIndexList",
    "rag_index_describe": "spass.tools.builtin.rag_index_describe:RagIndexDescribe",
    "rag_doc_list": "spass.tools.builtin.rag_doc_list:RagDocList",
    "rag_doc_get": "spass.tools.builtin.rag_doc_get:RagDocGet",
    "rag_index_create": "spass.tools.builtin.rag_index_create:RagIndexCreate",
    "rag_doc_append": "spass.tools.builtin.rag_doc_append:RagDocAppend",
    "rag_doc_patch": "spass.tools.builtin.rag_doc_patch:RagDocPatch",
    "rag_doc_delete": "spass.tools.builtin.rag_doc_delete:RagDocDelete",
    "rag_index_delete": "spass.tools.builtin.rag_index_delete:RagIndexDelete",
    "delegate": "spass.tools.builtin.delegate:Delegate",
    "memory_read": "spass.tools.builtin.memory_read:MemoryRead",
    "memory_write": "spass.tools.builtin.memory_write:MemoryWrite",
    "memory_store": "spass.tools.builtin.memory_store:MemoryStore",
    "memory_search": "spass.tools.builtin.memory_search:MemorySearch",
    "lineage_search": "spass.tools.builtin.lineage_search:LineageSearch",
    "read_file": "spass.tools.builtin.read_file:ReadFile",
    "list_directory": "spass.tools.builtin.list_directory:ListDirectory",
    "search_files": "spass.tools.builtin.search_files:SearchFiles",
    "aider_edit": "spass.tools.builtin.aider_edit:AiderEdit",
}
"""Tool name → ``module:Class``."""

WORKSPACE_TOOLS: Final = frozenset({"read_file", "list_directory", "search_files", "aider_edit", "delegate"})
"""The tools that need an agent with a workspace."""

GATED_TOOLS: Final = frozenset(
    {
        "aider_edit",
        "memory_write",
        "rag_index_create",
        "rag_doc_append",
        "rag_doc_patch",
        "rag_doc_delete",
        "rag_index_delete",
    }
)
"""The tools that write, for which an agent's file may demand a person's approval."""

GATEWAY_TOOLS: Final = (
    WORKSPACE_TOOLS
    | GATED_TOOLS
    | {"rag_query", "rag_index_list", "rag_index_describe", "rag_doc_list", "rag_doc_get", "memory_read", "lineage_search"}
)
"""The tools that need what a gateway stores for its tenants."""

MEMORY_TOOLS: Final = frozenset({"memory_store", "memory_search"})
"""The tools that need the memory of an operator."""


@cache
def load_tool(path: str) -> "type[Tool]":
    """Import the class of a tool. ``path`` is ``module:Class``."""
    from spass.tools.base import Tool

    module, _, class_name = path.partition(":")
    tool = getattr(importlib.import_module(module), class_name)
    if not (isinstance(tool, type) and issubclass(tool, Tool)):
        raise TypeError(f"{path} is not a Tool")
    return tool
