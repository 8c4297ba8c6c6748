"""What each route answers when all goes well, as JSON Schema. Only the description of the API reads it: no request does."""

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 128}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_FLAG: Final[Schema] = {"type": "boolean"}
_NULL: Final[Schema] = {"type": "null"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_ANYTHING: Final[Schema] = {"description": "Any JSON value."}
_FREE: Final[Schema] = {"type": "object"}
_SESSION_ID: Final[Schema] = {"type": "string", "pattern": "^ses_[0-9a-z]{26}$"}
_SUMMARY_ID: Final[Schema] = {"type": "string", "pattern": "^sum_[0-9a-z]{26}$"}
_JOB_ID: Final[Schema] = {"type": "string", "pattern": "^job_[0-9a-z]{26}$"}
_DECIMAL: Final[Schema] = {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?$"}
_CURSOR: Final[Schema] = {"type": ["string", "null"], "description": "Of the next page; null at the end."}


def _object(*, optional: Mapping[str, Schema] | None = None, **fields: Schema) -> Schema:
    """An object with these fields and no others."""
    properties = {**fields, **(optional or {})}
    return {"type": "object", "properties": properties, "required": [*fields], "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return schema if _NULL in schema.get("anyOf", ()) else {"anyOf": [schema, _NULL]}


def _only(*values: str) -> Schema:
    return {"type": "string", "enum": [*values]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TOOL_CALL: Final = _object(id=_TEXT, type=_only("function"), function=_object(name=_TEXT, arguments=_TEXT))
_USAGE: Final = {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}
_COST_IN_USD: Final = {"type": "number", "minimum": 0, "description": "In US dollars; `cost_details` has the exact decimals."}
_COST_DETAILS: Final = _object(eur=_DECIMAL, usd=_DECIMAL, source=_only("upstream", "catalog", "none"), sub_calls=_COUNT)
_CHOICE: Final = _object(
    index=_COUNT,
    message=_object(role=_only("assistant"), content=_or_null(_TEXT), refusal=_NULL, optional={"tool_calls": _list(_TOOL_CALL)}),
    logprobs=_NULL,
    finish_reason=_only("stop", "length", "tool_calls", "content_filter"),
)
_AGENT: Final = {
    "name": _TEXT,
    "description": _TEXT,
    "model": _TEXT,
    "kind": _TEXT,
    "tools": _list(_TEXT),
    "rag_index": _or_null(_TEXT),
}
_REPORT: Final = _object(loc=_list({"type": ["string", "integer"]}), message=_TEXT, type=_TEXT)

_SETTINGS: Final[Mapping[str, Schema]] = {
    "compact_strategy": _only("auto", "manual", "off"),
    "compact_keep_last_n": {"type": "integer", "minimum": 0, "maximum": 200},
    "compact_observation_mask": _FLAG,
    "compact_summary_model": _or_null(_NAME),
    "system_prompt": _or_null({"type": "string", "maxLength": 32768, "description": "At most 32 KiB of UTF-8."}),
    "memory": _or_null({"type": "string", "maxLength": 16384, "description": "At most 16 KiB of UTF-8."}),
    "tools_enabled_default": {**_list(_NAME), "maxItems": 128},
    "rag_top_k": {"type": "integer", "minimum": 1, "maximum": 50},
    "monthly_budget_usd": _or_null({"type": "number", "minimum": 0, "maximum": 10**9}),
    "tokens_per_minute": _or_null({"type": "integer", "minimum": 1, "maximum": 10**12}),
}
_JOB_STATUS: Final = _only("queued", "running", "succeeded", "failed")
_USED: Final = {"requests": _COUNT, **_USAGE, "cost_usd": _DECIMAL}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": _object(
        error=_object(
            code=_TEXT,
            message=_TEXT,
            type=_TEXT,
            param=_or_null(_TEXT),
            details={"type": "object", "properties": {"errors": _list(_REPORT)}},
        ),
        request_id=_TEXT,
    ),
    "Health": _object(status=_only("ok")),
    "Model": _object(id=_NAME, object=_only("model"), created=_COUNT, owned_by=_TEXT, kind=_only("chat", "embedding")),
    "ModelList": _object(object=_only("list"), data=_list(_ref("Model"))),
    "ChatCompletion": _object(
        id=_TEXT,
        object=_only("chat.completion"),
        created=_COUNT,
        model=_TEXT,
        choices=_list(_CHOICE),
        usage=_object(**_USAGE, cost=_COST_IN_USD, cost_details=_COST_DETAILS),
    ),
    "EmbeddingList": _object(
        object=_only("list"),
        data=_list(
            _object(
                object=_only("embedding"),
                index=_COUNT,
                embedding={"anyOf": [_list({"type": "number"}), {**_TEXT, "description": "base64 of float32, little-endian"}]},
            )
        ),
        model=_TEXT,
        usage=_object(prompt_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "ToolList": _object(
        tools=_list(
            _object(type=_only("function"), function=_object(name=_TEXT, description=_TEXT, parameters=_FREE)),
        )
    ),
    "ToolResult": _object(name=_TEXT, result=_ANYTHING, duration_ms=_COUNT),
    "TenantConfig": _object(
        config=_object(**_SETTINGS), sources=_object(**dict.fromkeys(_SETTINGS, _only("process", "yaml", "db")))
    ),
    "TenantConfigChange": _object(optional={name: _or_null(schema) for name, schema in _SETTINGS.items()}),
    "Usage": _object(usage=_list(_object(key=_or_null(_TEXT), **_USED)), total=_object(**_USED)),
    "Reset": _object(reset=_FLAG),
    "Audit": _object(request_id=_TEXT, calls=_list(_ref("AuditedCall")), truncated=_FLAG),
    "AuditedCall": _object(
        request_id=_TEXT,
        outer_request_id=_TEXT,
        parent_request_id=_TEXT,
        at=_TIME,
        kind=_only("chat", "embedding", "tool"),
        status=_TEXT,
        latency_ms=_COUNT,
        tenant=_TEXT,
        token_id=_TEXT,
        route=_TEXT,
        calls=_list(_ref("AuditedCall")),
        **dict.fromkeys(("origin_request_id", "user", "agent", "session"), _or_null(_TEXT)),
        **dict.fromkeys(("tool", "model", "backend", "finish_reason"), _or_null(_TEXT)),
        **dict.fromkeys(("attempts", "prompt_tokens", "completion_tokens"), _or_null(_COUNT)),
        **dict.fromkeys(("cost_usd", "cost_eur"), _or_null(_DECIMAL)),
        cost_source=_or_null(_only("upstream", "catalog", "none")),
        usage_estimated=_or_null(_FLAG),
    ),
    "AgentList": _object(agents=_list(_object(**_AGENT)), next_cursor=_CURSOR),
    "Agent": _object(
        **_AGENT,
        system_prompt=_TEXT,
        max_tokens=_or_null(_COUNT),
        temperature=_or_null({"type": "number"}),
        max_turns=_COUNT,
        rag_top_k=_COUNT,
    ),
    "Reply": _object(
        request_id=_TEXT,
        agent=_TEXT,
        model=_TEXT,
        session_id=_or_null(_SESSION_ID),
        message=_object(id=_or_null(_TEXT), seq=_or_null(_COUNT), role=_only("assistant"), content=_TEXT, created_at=_TIME),
        tool_calls=_list(_object(name=_TEXT, arguments=_ANYTHING, result=_ANYTHING, duration_ms=_COUNT)),
        usage=_object(**_USAGE),
        turns=_COUNT,
        finish_reason=_only("stop", "length", "max_turns", "content_filter"),
        compaction=_or_null(_object(source_session_id=_SESSION_ID, successor_session_id=_SESSION_ID, summary_id=_SUMMARY_ID)),
    ),
    "Session": _object(
        id=_SESSION_ID,
        agent=_TEXT,
        title=_or_null(_TEXT),
        created_at=_TIME,
        updated_at=_TIME,
        message_count=_COUNT,
        live_message_count=_COUNT,
        compact_strategy=_only("auto", "manual", "off"),
        compact_keep_last_n=_COUNT,
        compact_observation_mask=_FLAG,
        parent_session_id=_or_null(_SESSION_ID),
        successor_session_id=_or_null(_SESSION_ID),
        archived_at=_or_null(_TIME),
    ),
    "SessionList": _object(sessions=_list(_ref("Session")), next_cursor=_CURSOR),
    "Message": _object(
        id=_TEXT,
        seq=_COUNT,
        role=_only("user", "assistant", "tool"),
        content=_TEXT,
        created_at=_TIME,
        compacted_at=_or_null(_TIME),
        tool_calls=_list(_TOOL_CALL),
        tool_call_id=_or_null(_TEXT),
    ),
    "MessageList": _object(messages=_list(_ref("Message")), next_cursor=_CURSOR),
    "Successor": _object(successor_session_id=_SESSION_ID),
    "Compaction": _object(
        job_id=_JOB_ID,
        source_session_id=_SESSION_ID,
        successor_session_id=_SESSION_ID,
        summary_id=_SUMMARY_ID,
        summary_text=_or_null({**_TEXT, "description": "Null when the successor has been deleted since."}),
        summary_model=_TEXT,
        compacted_message_count=_COUNT,
        kept_message_count=_COUNT,
    ),
    "JobTicket": _object(job_id=_JOB_ID, status=_JOB_STATUS),
    "Job": _object(
        id=_JOB_ID,
        kind=_only("compaction"),
        status=_JOB_STATUS,
        created_at=_TIME,
        finished_at=_or_null(_TIME),
        result=_or_null(_ref("Compaction")),
        error=_or_null(_object(code=_TEXT, message=_TEXT)),
    ),
    "Summary": _object(
        id=_SUMMARY_ID,
        source_session_id=_SESSION_ID,
        successor_session_id=_SESSION_ID,
        text=_TEXT,
        model=_TEXT,
        created_at=_TIME,
        first_seq=_COUNT,
        last_seq=_COUNT,
    ),
    "DeletedSession": _object(id=_SESSION_ID, deleted={"type": "boolean", "const": True}),
    "Lineage": _object(
        session_id=_SESSION_ID,
        backward=_list({"anyOf": [_ref("Session"), _ref("DeletedSession")]}),
        forward=_list({"anyOf": [_ref("Session"), _ref("DeletedSession")]}),
        summaries=_list(_ref("Summary")),
        optional={"truncated": {"type": "boolean", "const": True, "description": "The chain is longer."}},
    ),
    "Deletion": _object(deleted=_FLAG),
    "Index": _object(
        id=_TEXT,
        doc_count=_COUNT,
        total_text_bytes=_COUNT,
        embedding_model=_TEXT,
        dimensions=_COUNT,
        version=_COUNT,
        created_at=_TIME,
        updated_at=_TIME,
    ),
    "IndexList": _object(indices=_list(_ref("Index")), next_cursor=_CURSOR),
    "Ingestion": _object(index_id=_TEXT, doc_count=_COUNT, ingested=_COUNT, replaced=_COUNT, version=_COUNT),
    "Document": _object(id=_TEXT, text=_TEXT, metadata=_FREE, created_at=_TIME, updated_at=_TIME),
    "DocumentList": _object(documents=_list(_ref("Document")), next_cursor=_CURSOR),
    "Findings": _object(
        index_id=_TEXT,
        results=_list(_object(id=_TEXT, text=_TEXT, metadata=_FREE, score={"type": "number", "minimum": -1, "maximum": 1})),
        version=_COUNT,
    ),
    "UploadTicket": _object(
        upload_id=_TEXT,
        url=_TEXT,
        fields={"type": "object", "additionalProperties": _TEXT, "description": "Form fields to send before the file."},
        expires_at=_TIME,
    ),
    "Upload": _object(
        id=_TEXT,
        filename=_TEXT,
        status=_only("waiting", "queued", "running", "succeeded", "failed"),
        bytes_done=_COUNT,
        bytes_total=_COUNT,
        documents_ingested=_COUNT,
        documents_failed=_COUNT,
        errors=_list(_object(line=_or_null({"type": "integer", "minimum": 1}), code=_TEXT, message=_TEXT)),
    ),
    "UploadList": _object(uploads=_list(_ref("Upload")), next_cursor=_CURSOR),
}

_SESSIONS: Final = "/a1/agents/{name}/sessions"
_INDEX: Final = "/a1/rag/indices/{index_id}"

SUCCESSES: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("GET", "/healthz"): {"200": "Health"},
    ("GET", "/v1/models"): {"200": "ModelList"},
    ("GET", "/v1/models/{model}"): {"200": "Model"},
    ("POST", "/v1/chat/completions"): {"200": "ChatCompletion"},
    ("POST", "/v1/embeddings"): {"200": "EmbeddingList"},
    ("GET", "/v1/tools"): {"200": "ToolList"},
    ("POST", "/v1/tools/execute"): {"200": "ToolResult"},
    ("GET", "/v1/tenant/config"): {"200": "TenantConfig"},
    ("PUT", "/v1/tenant/config"): {"200": "TenantConfig"},
    ("GET", "/v1/usage"): {"200": "Usage"},
    ("DELETE", "/v1/usage"): {"200": "Reset"},
    ("GET", "/v1/audit/{request_id}"): {"200": "Audit"},
    ("GET", "/a1/agents"): {"200": "AgentList"},
    ("GET", "/a1/agents/{name}"): {"200": "Agent"},
    ("POST", "/a1/agents/{name}/chat"): {"200": "Reply"},
    ("POST", _SESSIONS): {"201": "Session"},
    ("GET", _SESSIONS): {"200": "SessionList"},
    ("GET", f"{_SESSIONS}/{{session_id}}"): {"200": "Session"},
    ("DELETE", f"{_SESSIONS}/{{session_id}}"): {"200": "Deletion"},
    ("GET", f"{_SESSIONS}/{{session_id}}/messages"): {"200": "MessageList"},
    ("POST", f"{_SESSIONS}/{{session_id}}/messages"): {"200": "Reply", "308": "Successor"},
    ("POST", f"{_SESSIONS}/{{session_id}}/compact"): {"200": "Compaction", "202": "JobTicket"},
    ("GET", f"{_SESSIONS}/{{session_id}}/lineage"): {"200": "Lineage"},
    ("GET", "/a1/jobs/{job_id}"): {"200": "Job"},
    ("GET", "/a1/rag/indices"): {"200": "IndexList"},
    ("GET", _INDEX): {"200": "Index"},
    ("DELETE", _INDEX): {"200": "Deletion"},
    ("POST", f"{_INDEX}/documents"): {"200": "Ingestion"},
    ("POST", f"{_INDEX}/documents/append"): {"200": "Ingestion"},
    ("GET", f"{_INDEX}/documents"): {"200": "DocumentList"},
    ("GET", f"{_INDEX}/documents/{{doc_id}}"): {"200": "Document"},
    ("PATCH", f"{_INDEX}/documents/{{doc_id}}"): {"200": "Document"},
    ("DELETE", f"{_INDEX}/documents/{{doc_id}}"): {"200": "Deletion"},
    ("POST", f"{_INDEX}/query"): {"200": "Findings"},
    ("POST", f"{_INDEX}/uploads"): {"200": "UploadTicket"},
    ("GET", f"{_INDEX}/uploads"): {"200": "UploadList"},
    ("GET", f"{_INDEX}/uploads/{{upload_id}}"): {"200": "Upload"},
}
"""Method and path → status → the name of its schema."""

BODIES: Final[Mapping[tuple[str, str], str]] = {("PUT", "/v1/tenant/config"): "TenantConfigChange"}
"""Method and path → the schema of a body that its route takes as any object, because a room below judges it."""
