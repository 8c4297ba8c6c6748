"""Every route of the gateway, as plain data.

One row is one route and, in AWS, one Lambda (rows that name the same ``function`` share one). ``infra/stacks`` deploys this
table, ``local/`` serves it, tests check every row. This module imports nothing of the runtime.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Surface(StrEnum):
    """A part of the API with a stack of its own."""

    V1 = "v1"
    AGENTS = "agents"
    RAG = "rag"
    CHAT = "chat"
    WORKSPACES = "workspaces"
    MANAGED = "managed"
    PAGE = "page"


class Permission(StrEnum):
    """A permission of a route's function. A function's role has exactly the permissions of its rows."""

    TABLE_READ = "table-read"  # GetItem, Query
    TABLE_WRITE = "table-write"  # PutItem, UpdateItem, DeleteItem, ConditionCheckItem (transactions)
    BUCKET_READ = "bucket-read"  # GetObject under T/*
    BUCKET_WRITE = "bucket-write"  # PutObject, DeleteObject under T/*
    MODELS = "models"  # read the provider keys, call the models of Bedrock
    EMBEDDING = "embedding"  # the layer with the weights of the embedded model
    SWAGGER_UI = "swagger-ui"  # the layer with the files of the page at /docs
    PAGE = "page"  # the files of the page at /ui, in the function's bundle
    EDITOR = "editor"  # the layer with the packages of the editor
    UPLOADS_WRITE = "uploads-write"  # PutObject under uploads/*, lent to clients by presigned forms
    UPLOADS_READ = "uploads-read"  # GetObject and GetObjectVersion under uploads/*
    JOBS_SEND = "jobs-send"  # SendMessage to the queue of jobs
    COMPACTIONS_SEND = "compactions-send"  # SendMessage to the queue of compactions
    RUNS_SEND = "runs-send"  # SendMessage to the queue of runs
    SCHEDULES_READ = "schedules-read"  # GetSchedule in the group of schedules, ListSchedules
    SCHEDULES_WRITE = "schedules-write"  # CreateSchedule, UpdateSchedule in the group; PassRole of the role of its entries
    SCHEDULES_DELETE = "schedules-delete"  # DeleteSchedule in the group
    COMPACTION_START = "compaction-start"  # StartExecution of the state machine that compacts
    SANDBOX = "sandbox"  # InvokeFunction of the function that runs the code of models
    SANDBOX_NAME = "sandbox-name"  # the variable with its name, which says that code can run
    RELEASE = "release"  # the variable with the commit. A new commit changes the functions that have it


BINARY_MEDIA_TYPES: Final = ("application/octet-stream", "application/zip")
"""The media types whose bodies API Gateway passes to a function unchanged, in base64. It decodes all other bodies as UTF-8."""

MIN_COMPRESSED_BYTES: Final = 1024
"""The smallest answer that API Gateway compresses for a client that accepts it. It never compresses streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row of the table.

    ``module`` is the file in ``functions/`` (``sessions.create`` is ``functions/sessions/create.py``). ``long`` routes embed,
    wait or call a model: they stream under the Lambda Web Adapter and may take 15 minutes; the others answer within 29 s through
    Mangum. ``memory`` is in MiB. ``function`` names a Lambda that several short rows share (``functions/workers/shared.py``); by
    default each row has its own, named for its module. ``public`` routes need no token.
    The last parameter of a ``greedy`` row takes the rest of the path, with its slashes.
    ``retired``: in the release that changes ``long``, the name of the function that served the row before. That function stays
    for this release, so the module has both ``handler`` and ``app`` until the next.
    """

    method: str
    path: str
    module: str
    surface: Surface
    permissions: frozenset[Permission] = frozenset()
    long: bool = False
    memory: int = 512
    function: str | None = None
    public: bool = False
    greedy: bool = False
    retired: str | None = None

    @property
    def resource(self) -> str:
        """Return the path in API Gateway's syntax."""
        return f"{self.path.removesuffix('}')}+}}" if self.greedy else self.path

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the HTTP methods that invoke this row's function: a GET row also serves HEAD."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)

    @property
    def function_name(self) -> str:
        """Return the logical name of the Lambda that serves this row, e.g. ``sessions-create``."""
        return self.function or self.module.replace(".", "-").replace("_", "-")


_READ: Final = frozenset({Permission.TABLE_READ})
_READ_WRITE: Final = _READ | {Permission.TABLE_WRITE}
_HISTORY: Final = _READ | {Permission.BUCKET_READ}
# A model may call tools that write documents.
_MODEL_CALL: Final = _READ_WRITE | {
    Permission.BUCKET_READ,
    Permission.BUCKET_WRITE,
    Permission.MODELS,
    Permission.EMBEDDING,
    Permission.JOBS_SEND,
}
# A tool may run code.
_TOOL_CALL: Final = _MODEL_CALL | {Permission.SANDBOX, Permission.SANDBOX_NAME}
# The agent may edit files. This adds no right: an edit's version is written as a model's documents are.
_AGENT_RUN: Final = _TOOL_CALL | {Permission.EDITOR}
_RAG_READ: Final = _READ | {Permission.BUCKET_READ}
_RAG_WRITE: Final = _READ_WRITE | {Permission.BUCKET_READ, Permission.BUCKET_WRITE}
# A query embeds too, leaves an audit record (in the queue, if the table does not answer), and keeps its answer for an
# Idempotency-Key: in the bucket, when it is large.
_RAG_EMBED: Final = _RAG_WRITE | {Permission.MODELS, Permission.EMBEDDING, Permission.JOBS_SEND}

_WORKSPACE_READ: Final = _READ | {Permission.BUCKET_READ}
_WORKSPACE_WRITE: Final = _READ_WRITE | {Permission.BUCKET_READ, Permission.BUCKET_WRITE}

# It reads what there is to compact and takes the session; the summary is made by others, and it waits for them.
_COMPACT: Final = _READ_WRITE | {Permission.BUCKET_READ, Permission.COMPACTIONS_SEND}

# A PATCH may also remove the schedule.
_SCHEDULE_WRITE: Final = _READ_WRITE | {Permission.SCHEDULES_WRITE, Permission.SCHEDULES_DELETE}

# It queues the run. A long input is in the bucket, and whether the kind can run depends on the sandbox.
_RUN_START: Final = _RAG_WRITE | {Permission.RUNS_SEND, Permission.SANDBOX_NAME}

_DOCS: Final = frozenset({Permission.SWAGGER_UI})
_PAGE: Final = frozenset({Permission.PAGE})

_AGENT: Final = "/a1/agents/{name}"
_SESSION: Final = "/a1/agents/{name}/sessions/{session_id}"
_INDEX: Final = "/a1/rag/indices/{index_id}"
_APPROVAL: Final = "/a1/approvals/{approval_id}"
_CHAT: Final = "/c1/agents/{name}/chat"
_WORKSPACE: Final = "/a1/workspaces/{workspace_id}"
_OPERATOR: Final = "/v1/operators/{operator_id}"
_MANAGED: Final = "/v1/managed-agents/{agent_id}"

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/",
        module="page.root",
        surface=Surface.PAGE,
        permissions=_PAGE,
        memory=256,
        public=True,
        function="page",
    ),
    Route(
        method="GET",
        path="/ui",
        module="page.page",
        surface=Surface.PAGE,
        permissions=_PAGE,
        memory=256,
        public=True,
        function="page",
    ),
    Route(
        method="GET",
        path="/ui/{asset}",
        module="page.asset",
        surface=Surface.PAGE,
        permissions=_PAGE,
        memory=256,
        public=True,
        function="page",
    ),
    Route(
        method="GET",
        path="/healthz",
        module="meta.health",
        surface=Surface.V1,
        permissions=frozenset({Permission.RELEASE}),
        memory=256,
        public=True,
    ),
    Route(
        method="GET",
        path="/openapi.json",
        module="meta.openapi",
        surface=Surface.V1,
        memory=1024,
        public=True,
        function="meta-docs",
    ),
    Route(
        method="GET",
        path="/docs",
        module="meta.docs",
        surface=Surface.V1,
        permissions=_DOCS,
        memory=1024,
        public=True,
        function="meta-docs",
    ),
    Route(
        method="GET",
        path="/docs/{file}",
        module="meta.docs_file",
        surface=Surface.V1,
        permissions=_DOCS,
        memory=1024,
        public=True,
        function="meta-docs",
    ),
    Route(method="GET", path="/v1/models", module="models.list", surface=Surface.V1, memory=256, function="models-read"),
    Route(
        method="GET",
        path="/v1/models/{model}",
        module="models.get",
        surface=Surface.V1,
        memory=256,
        function="models-read",
        greedy=True,
    ),
    Route(
        method="POST",
        path="/v1/chat/completions",
        module="chat.completions",
        surface=Surface.V1,
        permissions=_AGENT_RUN,
        long=True,
        memory=1024,
    ),
    Route(
        method="POST",
        path="/v1/embeddings",
        module="embeddings.create",
        surface=Surface.V1,
        permissions=_MODEL_CALL,
        long=True,
        memory=1769,
    ),
    Route(method="POST", path="/v1/ask", module="ask.create", surface=Surface.V1, permissions=_AGENT_RUN, long=True, memory=1769),
    Route(
        method="GET",
        path="/v1/kinds",
        module="kinds.list",
        surface=Surface.V1,
        permissions=frozenset({Permission.SANDBOX_NAME}),
        memory=256,
    ),
    Route(method="GET", path="/v1/tools", module="tools.list", surface=Surface.V1, memory=256),
    Route(
        method="POST",
        path="/v1/tools/execute",
        module="tools.execute",
        surface=Surface.V1,
        permissions=_TOOL_CALL,
        long=True,
        memory=1769,
    ),
    Route(method="GET", path="/v1/tenant/config", module="tenant.config_get", surface=Surface.V1, permissions=_READ),
    Route(method="PUT", path="/v1/tenant/config", module="tenant.config_put", surface=Surface.V1, permissions=_READ_WRITE),
    Route(method="GET", path="/v1/usage", module="usage.get", surface=Surface.V1, permissions=_READ),
    Route(method="DELETE", path="/v1/usage", module="usage.reset", surface=Surface.V1, permissions=_READ_WRITE),
    Route(method="GET", path="/v1/audit/{request_id}", module="audit.get", surface=Surface.V1, permissions=_READ),
    # Whether an agent is usable depends on the sandbox.
    Route(
        method="GET",
        path="/a1/agents",
        module="agents.list",
        surface=Surface.AGENTS,
        permissions=frozenset({Permission.SANDBOX_NAME}),
        memory=256,
    ),
    Route(
        method="GET",
        path=_AGENT,
        module="agents.get",
        surface=Surface.AGENTS,
        permissions=_READ | {Permission.SANDBOX_NAME},
        memory=256,
    ),
    Route(
        method="POST",
        path=f"{_AGENT}/chat",
        module="agents.chat",
        surface=Surface.AGENTS,
        permissions=_AGENT_RUN,
        long=True,
        memory=1769,
    ),
    Route(method="POST", path=f"{_AGENT}/sessions", module="sessions.create", surface=Surface.AGENTS, permissions=_READ_WRITE),
    Route(method="GET", path=f"{_AGENT}/sessions", module="sessions.list", surface=Surface.AGENTS, permissions=_READ),
    Route(method="GET", path=_SESSION, module="sessions.get", surface=Surface.AGENTS, permissions=_READ),
    Route(method="DELETE", path=_SESSION, module="sessions.delete", surface=Surface.AGENTS, permissions=_RAG_WRITE),
    Route(method="GET", path=f"{_SESSION}/messages", module="sessions.history", surface=Surface.AGENTS, permissions=_HISTORY),
    Route(
        method="POST",
        path=f"{_SESSION}/messages",
        module="sessions.append",
        surface=Surface.AGENTS,
        permissions=_AGENT_RUN,
        long=True,
        memory=1769,
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/compact",
        module="sessions.compact",
        surface=Surface.AGENTS,
        permissions=_COMPACT,
        long=True,
        memory=1024,
    ),
    Route(method="GET", path=f"{_SESSION}/lineage", module="sessions.lineage", surface=Surface.AGENTS, permissions=_READ),
    # Who asks for a job that was lost ends it.
    Route(method="GET", path="/a1/jobs/{job_id}", module="jobs.get", surface=Surface.AGENTS, permissions=_READ_WRITE),
    Route(method="GET", path="/a1/approvals", module="approvals.list", surface=Surface.AGENTS, permissions=_HISTORY),
    Route(method="GET", path=_APPROVAL, module="approvals.get", surface=Surface.AGENTS, permissions=_HISTORY),
    Route(method="GET", path=f"{_APPROVAL}/changes", module="approvals.changes", surface=Surface.AGENTS, permissions=_HISTORY),
    # It runs the approved call, which may embed documents. No model is asked.
    Route(
        method="POST",
        path=_APPROVAL,
        module="approvals.decide",
        surface=Surface.AGENTS,
        permissions=_RAG_EMBED,
        long=True,
        memory=1769,
    ),
    Route(method="GET", path="/a1/rag/indices", module="rag.list", surface=Surface.RAG, permissions=_READ),
    Route(method="GET", path=_INDEX, module="rag.get", surface=Surface.RAG, permissions=_READ),
    Route(method="DELETE", path=_INDEX, module="rag.delete", surface=Surface.RAG, permissions=_READ_WRITE),
    Route(
        method="POST",
        path=f"{_INDEX}/documents",
        module="rag.replace",
        surface=Surface.RAG,
        permissions=_RAG_EMBED,
        long=True,
        memory=1769,
    ),
    Route(
        method="POST",
        path=f"{_INDEX}/documents/append",
        module="rag.append",
        surface=Surface.RAG,
        permissions=_RAG_EMBED,
        long=True,
        memory=1769,
    ),
    Route(
        method="GET",
        path=f"{_INDEX}/documents",
        module="rag.documents_list",
        surface=Surface.RAG,
        permissions=_RAG_READ,
        memory=1024,
        function="rag-documents-read",
    ),
    Route(
        method="GET",
        path=f"{_INDEX}/documents/{{doc_id}}",
        module="rag.documents_get",
        surface=Surface.RAG,
        permissions=_RAG_READ,
        memory=1024,
        function="rag-documents-read",
    ),
    Route(
        method="DELETE",
        path=f"{_INDEX}/documents/{{doc_id}}",
        module="rag.documents_delete",
        surface=Surface.RAG,
        permissions=_RAG_WRITE | {Permission.JOBS_SEND},
        memory=1024,
    ),
    Route(
        method="PATCH",
        path=f"{_INDEX}/documents/{{doc_id}}",
        module="rag.documents_patch",
        surface=Surface.RAG,
        permissions=_RAG_EMBED,
        long=True,
        memory=1769,
    ),
    Route(
        method="POST",
        path=f"{_INDEX}/uploads",
        module="rag.uploads_create",
        surface=Surface.RAG,
        permissions=_READ_WRITE | {Permission.UPLOADS_WRITE},
    ),
    Route(
        method="GET",
        path=f"{_INDEX}/uploads",
        module="rag.uploads_list",
        surface=Surface.RAG,
        permissions=_READ,
        function="rag-uploads-read",
    ),
    Route(
        method="GET",
        path=f"{_INDEX}/uploads/{{upload_id}}",
        module="rag.uploads_get",
        surface=Surface.RAG,
        permissions=_READ,
        function="rag-uploads-read",
    ),
    Route(
        method="POST",
        path=f"{_INDEX}/query",
        module="rag.query",
        surface=Surface.RAG,
        permissions=_RAG_EMBED,
        long=True,
        memory=1769,
    ),
    Route(
        method="POST", path=_CHAT, module="streams.create", surface=Surface.CHAT, permissions=_AGENT_RUN, long=True, memory=1769
    ),
    Route(
        method="POST",
        path="/c1/agents/{name}/job_card",
        module="streams.job_card",
        surface=Surface.CHAT,
        permissions=_AGENT_RUN,
        long=True,
        memory=1769,
    ),
    Route(
        method="GET",
        path=f"{_CHAT}/{{message_id}}",
        module="streams.get",
        surface=Surface.CHAT,
        permissions=_READ_WRITE,  # a follower takes a place
        long=True,
        memory=512,
    ),
    Route(method="DELETE", path=f"{_CHAT}/{{message_id}}", module="streams.stop", surface=Surface.CHAT, permissions=_READ_WRITE),
    Route(
        method="GET",
        path="/a1/workspaces",
        module="workspaces.list",
        surface=Surface.WORKSPACES,
        permissions=_READ,
        function="workspaces-read",
    ),
    Route(
        method="GET",
        path=_WORKSPACE,
        module="workspaces.get",
        surface=Surface.WORKSPACES,
        permissions=_READ,
        function="workspaces-read",
    ),
    Route(
        method="DELETE",
        path=_WORKSPACE,
        module="workspaces.delete",
        surface=Surface.WORKSPACES,
        permissions=_READ_WRITE,
    ),
    Route(
        method="GET",
        path=f"{_WORKSPACE}/tree",
        module="workspaces.tree",
        surface=Surface.WORKSPACES,
        permissions=_WORKSPACE_READ,
        memory=1769,
        function="workspaces-trees",
    ),
    Route(
        method="GET",
        path=f"{_WORKSPACE}/file",
        module="workspaces.file_get",
        surface=Surface.WORKSPACES,
        permissions=_WORKSPACE_READ,
        long=True,
    ),
    Route(
        method="PUT",
        path=f"{_WORKSPACE}/file",
        module="workspaces.file_put",
        surface=Surface.WORKSPACES,
        permissions=_WORKSPACE_WRITE,
        memory=1769,
        function="workspaces-write",
    ),
    Route(
        method="DELETE",
        path=f"{_WORKSPACE}/file",
        module="workspaces.file_delete",
        surface=Surface.WORKSPACES,
        permissions=_WORKSPACE_WRITE,
        memory=1769,
        function="workspaces-write",
    ),
    # An archive may inflate to 100 MiB, and most of its time is computing.
    Route(
        method="PUT",
        path=f"{_WORKSPACE}/archive",
        module="workspaces.archive_put",
        surface=Surface.WORKSPACES,
        permissions=_WORKSPACE_WRITE,
        memory=1769,
        function="workspaces-write",
    ),
    Route(
        method="GET",
        path=f"{_WORKSPACE}/archive",
        module="workspaces.archive_get",
        surface=Surface.WORKSPACES,
        permissions=_WORKSPACE_READ,
        long=True,
        memory=1024,
    ),
    Route(
        method="GET",
        path=f"{_WORKSPACE}/versions",
        module="workspaces.versions",
        surface=Surface.WORKSPACES,
        permissions=_READ,
        function="workspaces-read",
    ),
    Route(
        method="GET",
        path=f"{_WORKSPACE}/diff",
        module="workspaces.diff",
        surface=Surface.WORKSPACES,
        permissions=_WORKSPACE_READ,
        memory=1769,
        function="workspaces-trees",
    ),
    Route(
        method="POST",
        path=f"{_WORKSPACE}/restore",
        module="workspaces.restore",
        surface=Surface.WORKSPACES,
        permissions=_WORKSPACE_WRITE,
        memory=1769,
        function="workspaces-write",
    ),
    Route(
        method="GET",
        path=_OPERATOR,
        module="operators.get",
        surface=Surface.MANAGED,
        permissions=_READ,
        function="operators-read",
    ),
    Route(
        method="GET",
        path=f"{_OPERATOR}/notes",
        module="operators.notes",
        surface=Surface.MANAGED,
        permissions=_READ,
        function="operators-read",
    ),
    Route(method="DELETE", path=_OPERATOR, module="operators.delete", surface=Surface.MANAGED, permissions=_READ_WRITE),
    Route(
        method="POST",
        path="/v1/managed-agents",
        module="managed.create",
        surface=Surface.MANAGED,
        permissions=_SCHEDULE_WRITE,
        memory=1024,
        function="managed-write",
    ),
    Route(
        method="GET",
        path="/v1/managed-agents",
        module="managed.list",
        surface=Surface.MANAGED,
        permissions=_HISTORY,
        function="managed-read",
    ),
    Route(
        method="GET",
        path=_MANAGED,
        module="managed.get",
        surface=Surface.MANAGED,
        permissions=_HISTORY,
        function="managed-read",
    ),
    Route(
        method="PATCH",
        path=_MANAGED,
        module="managed.patch",
        surface=Surface.MANAGED,
        permissions=_SCHEDULE_WRITE,
        memory=1024,
        function="managed-write",
    ),
    Route(
        method="DELETE",
        path=_MANAGED,
        module="managed.delete",
        surface=Surface.MANAGED,
        permissions=_RAG_WRITE | {Permission.SCHEDULES_DELETE},
        memory=1024,
    ),
    Route(
        method="GET",
        path=f"{_MANAGED}/messages",
        module="managed.messages",
        surface=Surface.MANAGED,
        permissions=_HISTORY,
        function="managed-read",
    ),
    Route(
        method="POST",
        path=f"{_MANAGED}/messages",
        module="managed.message_send",
        surface=Surface.MANAGED,
        permissions=_AGENT_RUN,
        long=True,
        memory=1769,
    ),
    Route(
        method="POST",
        path=f"{_MANAGED}/run",
        module="managed.run",
        surface=Surface.MANAGED,
        permissions=_RUN_START,
        memory=1024,
    ),
    Route(
        method="GET",
        path=f"{_MANAGED}/runs",
        module="managed.runs",
        surface=Surface.MANAGED,
        permissions=_HISTORY,
        function="managed-read",
    ),
    Route(
        method="GET",
        path=f"{_MANAGED}/runs/{{run_id}}",
        module="managed.run_get",
        surface=Surface.MANAGED,
        permissions=_HISTORY,
        function="managed-read",
    ),
    # Who follows or stops a run whose worker died ends it. The input of a run may be in the bucket.
    Route(
        method="GET",
        path=f"{_MANAGED}/runs/{{run_id}}/stream",
        module="managed.run_stream",
        surface=Surface.MANAGED,
        permissions=_HISTORY | {Permission.TABLE_WRITE},
        long=True,
        memory=512,
    ),
    Route(
        method="DELETE",
        path=f"{_MANAGED}/runs/{{run_id}}",
        module="managed.run_stop",
        surface=Surface.MANAGED,
        permissions=_HISTORY | {Permission.TABLE_WRITE},
    ),
)

NO_SUCH_ROUTE: Final = (
    "There is no such route. GET /docs lists all routes. Most begin with /v1/, /a1/ or /c1/, and no path has an empty "
    "segment (//)."
)
"""The message of the 404 for an unknown path."""


def _route_hints() -> dict[str, str]:
    routes: dict[str, list[str]] = {}
    for route in ROUTES:
        if route.path.startswith("/v1/"):
            routes.setdefault(route.path.removeprefix("/v1"), []).append(f"{route.method} {route.path}")
    for path in ("/responses", "/completions", "/messages"):
        routes[path] = routes[f"/v1{path}"] = ["POST /v1/chat/completions"]
    return {path: f"There is no route {path}. Use {' or '.join(instead)}." for path, instead in routes.items()}


ROUTE_HINTS: Final = _route_hints()
"""The message of the 404 for each path of another API, and for each of our paths without ``/v1``. It names the route to use."""
