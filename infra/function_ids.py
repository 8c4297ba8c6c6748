"""The construct ids of the routes' functions, of which CloudFormation's logical ids are made.

A function of another kind needs another logical id: an update would change its code and its integration at different moments, and
a request between them would meet a function that cannot read it.
"""

from typing import Final

_LONG_AT_FIRST: Final = frozenset(
    {
        "agents-chat",
        "approvals-decide",
        "ask-create",
        "chat-completions",
        "embeddings-create",
        "managed-message-send",
        "managed-run-stream",
        "rag-append",
        "rag-documents-patch",
        "rag-query",
        "rag-replace",
        "sessions-append",
        "sessions-compact",
        "streams-create",
        "streams-get",
        "streams-job-card",
        "tools-execute",
        "workspaces-archive-get",
        "workspaces-file-get",
    }
)
"""The long functions whose id is their name alone, as when they were first deployed. Do not change this: add no new function."""


def function_id(name: str, *, long: bool) -> str:
    """Return the construct id of the function ``name``, which differs for each kind."""
    if long == (name in _LONG_AT_FIRST):
        return name
    return f"{name}-{'streaming' if long else 'short'}"
