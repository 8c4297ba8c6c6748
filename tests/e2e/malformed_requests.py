"""Strategies that generate malformed requests: valid ones with single parts changed."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from hypothesis import strategies as st

from infra.routes import Route
from tests.functions.workspace_client import pack

Json = Any
Header = tuple[bytes, bytes]

AGENT: Final = "concise-de"
INDEX: Final = "fuzz-index"
WORKSPACE: Final = "fuzz-space"
FILE: Final = "src/tee.md"
DOCUMENT: Final = "fuzz:1"
OPERATOR: Final = "fuzz:operator"
TOKEN: Final = "fuzz-token"
ADMIN_TOKEN: Final = "fuzz-admin-token"
FOR_ADMINS: Final = frozenset({"tenant.config_put", "usage.reset"})
USER: Final = "fuzzer"

GOOD_BODIES: Final[Mapping[str, Sequence[Json]]] = {
    "chat.completions": (
        {"model": "llama-4-scout", "messages": [{"role": "user", "content": "Hallo"}], "temperature": 0.5, "stream": False},
        {"model": "grok-4", "messages": [{"role": "user", "content": [{"type": "text", "text": "6*7?"}]}], "stream": True},
        {
            "model": "gpt-5-mini",
            "messages": [
                {"role": "system", "content": "Kurz."},
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "42"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "auto",
        },
    ),
    "embeddings.create": (
        {"model": "all-minilm-l6-v2", "input": ["Hallo"], "encoding_format": "float"},
        {"model": "all-minilm-l6-v2", "input": "Hallo", "encoding_format": "base64"},
    ),
    "ask.create": (
        {"input": "6*7?", "agent": "react", "tools": ["calculator"], "params": {"max_turns": 2, "temperature": 0.5}},
        {"input": "Hallo", "agent": "orchestrator", "params": {"mode": "structured"}, "context": "Tee", "stream": True},
        {
            "input": "Hallo",
            "agent": "simple",
            "model": "llama-4-scout",
            "system_prompt": "Kurz.",
            "context": {"conversation": [{"role": "user", "content": "Tee"}], "memory_results": [1], "metadata": {"a": None}},
        },
        {"input": "Hallo", "agent": AGENT},
    ),
    "tools.execute": (
        {"name": "calculator", "arguments": {"expression": "6*7"}},
        {"name": "current_datetime", "arguments": {"timezone": "Europe/Berlin"}},
        {"name": "rag_query", "arguments": {"index_id": INDEX, "query": "Tee", "top_k": 2}},
        {"name": "rag_doc_patch", "arguments": {"index_id": INDEX, "doc_id": DOCUMENT, "metadata": {}}},
    ),
    "tenant.config_put": (
        {"compact_strategy": "off", "compact_keep_last_n": 3, "compact_observation_mask": False, "rag_top_k": 2},
        {"system_prompt": "Kurz.", "memory": None, "tools_enabled_default": ["calculator"], "compact_summary_model": "grok-4"},
        {"monthly_budget_usd": 2.5, "tokens_per_minute": 1000},
    ),
    "agents.chat": ({"message": "Hallo"},),
    "approvals.decide": ({"decision": "approve"}, {"decision": "deny", "reason": "Not today."}),
    "sessions.create": (
        {"title": "Sport", "compact_strategy": "auto", "compact_keep_last_n": 3, "compact_observation_mask": True},
    ),
    "sessions.append": ({"message": "Hallo"},),
    "sessions.compact": ({},),
    "streams.create": (
        {"message_id": "fuzz-1", "messages": [{"role": "user", "content": "Hallo"}], "session_id": "fuzz"},
        {
            "message_id": "fuzz-2",
            "messages": [
                {"role": "user", "content": "6*7?"},
                {"role": "assistant", "content": "42"},
                {"role": "tool", "content": "42", "tool_call_id": "c1"},
                {"role": "user", "content": "Hallo"},
            ],
            "model": "llama-4-scout",
            "agent_id": AGENT,
        },
    ),
    "streams.job_card": (
        {"title": "Sport", "task": "Hallo", "session_id": "fuzz"},
        {"title": "Sport", "task": "6*7?", "files": ["src/main.py"], "acceptance": ["42"], "message_id": "fuzz-3"},
    ),
    "managed.create": (
        {"name": "Fuzz", "agent": "simple", "model": "llama-4-scout", "system_prompt": "Kurz."},
        {"name": "Fuzz", "agent": "react", "tools": ["calculator"], "params": {"max_turns": 2}},
        {
            "name": "Fuzz",
            "agent": AGENT,
            "schedule": {"expression": "rate(1 day)", "timezone": "Europe/Berlin", "enabled": False},
        },
    ),
    "managed.patch": (
        {"name": "Fuzz", "tools": None, "params": None, "paused": True},
        {"schedule": {"expression": "cron(0 8 ? * MON-FRI *)", "input": "Hallo"}, "system_prompt": "Kurz."},
    ),
    "managed.message_send": ({"content": "Hallo"}, {"content": "6*7?", "stream": True}),
    "managed.run": ({"input": "Hallo"}, {}),
    "rag.replace": ({"documents": [{"id": DOCUMENT, "text": "Tee", "metadata": {"n": 1}}]},),
    "rag.append": ({"documents": [{"id": "fuzz:2", "text": "Tee", "metadata": {"n": [1]}}]},),
    "rag.documents_patch": ({"text": "Kaffee", "metadata": {"n": 2}}, {"metadata": {}}),
    "rag.query": (
        {"query": "Tee", "top_k": 3},
        {"query": "Tee", "filter": {"n": {"$gte": 1, "$lte": 3, "$ne": 2}, "k": {"$in": [1, None]}, "x": "y"}, "min_score": 0.1},
    ),
    "rag.uploads_create": ({"filename": "tee.md", "content_type": "text/markdown", "size": 100},),
    "workspaces.restore": ({"version": 1}, {"version": 1, "paths": [FILE]}),
}
"""Valid bodies, for each route that takes JSON."""


GOOD_BYTES: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "workspaces.file_put": (b"application/octet-stream", b"Tee\r\n\xff"),
    "workspaces.archive_put": (b"application/zip", pack({FILE: "Kaffee"})),
}
"""The media type and a valid body, for each route that takes bytes."""

METHODS: Final = st.sampled_from(
    [b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE", b"PROPFIND", b"get"]
)

_ODD_SEGMENTS: Final = (
    b"", b".", b"..", b"%2e%2e", b"%2F", b"a%2Fb", b"%00", b"%0d%0aX:%20y", b"%ff", b"%", b"%zz", b"%c3%28", b"%ed%a0%80",
    b"%F0%9F%8D%B5", b";a=b", b"*", b"T%23demo%23", b"demo/../other", b"'%22%3Cscript%3E", b"ses_00000000000000000000000000",
    b"null", b"-1", b"a" * 129, b"a%231", b"a%23x", b"a" * 3000, b"%25", b"+", b"~", b"{name}", b"$", b"sessions", b"documents",
)  # fmt: skip

_ODD_VALUES: Final[tuple[Json, ...]] = (
    None, True, False, 0, -1, 1, 0.1, -0.0, 1e308, 2**31, 2**63, -(2**63), 10**40, "", " ", "\x00", "\u2028", "\ufeff",
    "ä" * 5000, "x" * 9000, "../../etc/passwd", "T#demo#", "{{7*7}}", "${jndi:ldap://x}", "NaN", "\u202eabc", "🍵", [], {}, [[]],
    [None], {"": None}, {"type": "text"}, {"$ref": "#/"}, ["a"] * 300, [{}] * 300, {"user_id": "ada"}, {"tenant": "demo"},
    {"__proto__": {}}, 1.5e-320,
)  # fmt: skip

_ODD_HEADERS: Final[tuple[Header, ...]] = (
    (b"Authorization", b"Bearer"),
    (b"Authorization", b"Bearer \xff\xfe"),
    (b"Authorization", b"Basic ZGVtbzpkZW1v"),
    (b"Authorization", b"bearer  " + TOKEN.encode()),
    (b"SPASS-User-Id", b""),
    (b"SPASS-User-Id", b"ada"),
    (b"SPASS-User-Id", b"\xc3\xa4"),
    (b"SPASS-User-Id", b"a" * 129),
    (b"SPASS-User-Id", b"ada, bob"),
    (b"SPASS-Caller-Depth", b"2"),
    (b"SPASS-Caller-Depth", b"3"),
    (b"SPASS-Caller-Depth", b"-1"),
    (b"SPASS-Caller-Depth", b"\xb2"),
    (b"SPASS-Caller-Depth", b"9" * 5000),
    (b"SPASS-Parent-Request-Id", b"\x80"),
    (b"SPASS-Parent-Request-Id", b"req_" + b"0" * 26),
    (b"SPASS-Request-Id", b"req_mine"),
    (b"SPASS-Augment", b"memory=on"),
    (b"SPASS-Augment", b"=,=,,;"),
    (b"SPASS-Augment", b"memory=off, server-tools=off"),
    (b"Idempotency-Key", b""),
    (b"Idempotency-Key", b"k" * 256),
    (b"Idempotency-Key", b"the same"),
    (b"Idempotency-Key", b"fuzz"),
    (b"Idempotency-Key", b"\xe4"),
    (b"Content-Type", b"text/plain"),
    (b"Content-Type", b"application/json; charset=utf-16"),
    (b"Content-Type", b"multipart/form-data; boundary=x"),
    (b"Content-Type", b"\xff"),
    (b"Content-Encoding", b"gzip"),
    (b"Accept", b"text/html"),
    (b"Accept", b"text/event-stream"),
    (b"Range", b"bytes=0-1"),
    (b"If-None-Match", b"*"),
    (b"X-HTTP-Method-Override", b"DELETE"),
    (b"X-Forwarded-For", b"\x80, 127"),
    (b"X-Forwarded-Proto", b"javascript"),
    (b"Prefer", b"respond-async"),
    (b"Cookie", b"a=b; a=c"),
    (b"Expect", b"100-continue"),
)

_ODD_PARAMETERS: Final = (
    b"limit=0", b"limit=1", b"limit=1001", b"limit=-1", b"limit=1e3", b"limit=%D9%A1", b"limit=", b"limit=1&limit=2",
    b"limit=" + b"9" * 4500, b"cursor=", b"cursor=x", b"cursor=%00", b"cursor=%ff", b"cursor=bnVsbA", b"cursor=e30",
    b"cursor=W10", b"cursor=" + b"A" * 4097, b"cursor=1&cursor=2", b"user_id=ada", b"user_id", b"tenant=demo", b"&&&", b"=",
    b"%", b"%00=%00", b"a[]=1", b"?", b";",
    b"path=", b"path=src", b"path=src/", b"path=../x", b"path=%2Fetc", b"path=%ff", b"path=a&path=b", b"path=%2egit/config",
    b"version=0", b"version=1", b"version=x", b"version=" + b"9" * 4500, b"depth=1", b"depth=0", b"depth=", b"mode=merge",
    b"mode=x", b"from=0", b"from=1", b"from=-1", b"to=1", b"to=%D9%A1",
)  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class MalformedRequest:
    """An HTTP request whose method, target, headers and body may each be invalid."""

    method: bytes
    target: bytes
    headers: tuple[Header, ...]
    body: bytes

    def __repr__(self) -> str:
        parts = [self.method, self.target, *[name + b": " + value for name, value in self.headers], self.body]
        return "\n".join(repr(part) if len(part) <= 400 else f"{part[:400]!r}… ({len(part)} bytes)" for part in parts)


def token_of(route: Route) -> str:
    """Return a token that the route accepts, so that it validates the rest of the request."""
    return ADMIN_TOKEN if route.module in FOR_ADMINS else TOKEN


def token_headers(token: str = TOKEN) -> list[Header]:
    return [(b"Authorization", b"Bearer " + token.encode()), (b"SPASS-User-Id", USER.encode())]


@st.composite
def malformed_requests(draw: st.DrawFn, route: Route, known: Mapping[str, str]) -> MalformedRequest:
    """Generate requests to ``route``. Most parts are valid, so that the gateway also validates the others."""
    method = draw(METHODS) if draw(_one_in_ten()) else route.method.encode()
    parts = [
        draw(segments((known[part[1:-1]],))) if part.startswith("{") else part.encode() for part in route.path.split("/")[1:]
    ]
    has_path = route.path.endswith("/file") and draw(st.booleans())
    target = b"/" + b"/".join(parts) + (b"?path=" + FILE.encode() if has_path else draw(queries()))
    headers = [header for header in token_headers(token_of(route)) if not draw(_one_in_ten())]
    headers += draw(st.lists(st.sampled_from(_ODD_HEADERS), max_size=2)) if draw(st.booleans()) else []
    if route.module in GOOD_BYTES:
        media_type, valid = GOOD_BYTES[route.module]
        headers += [] if draw(_one_in_ten()) else [(b"Content-Type", media_type)]
        body = draw(st.one_of(st.just(valid), _change_bytes(valid), st.binary(max_size=100)))
    else:
        body = draw(bodies(GOOD_BODIES.get(route.module)))
    return MalformedRequest(method, target, tuple(headers), body)


def _segment(part: str, known: Mapping[str, str]) -> st.SearchStrategy[bytes]:
    return segments((known[part[1:-1]],)) if part.startswith("{") else st.just(part.encode())


def _one_in_ten() -> st.SearchStrategy[bool]:
    return st.sampled_from([False] * 9 + [True])


def segments(known: Sequence[str]) -> st.SearchStrategy[bytes]:
    """Generate a path segment: mostly one of ``known``, if there are any."""
    odd = st.one_of(st.sampled_from(_ODD_SEGMENTS), st.binary(max_size=12).map(lambda raw: quote(raw).encode()))
    return st.one_of(*[st.just(segment.encode()) for segment in known] * 3, odd)


def queries() -> st.SearchStrategy[bytes]:
    """Generate an empty text, or a query with its question mark."""
    nonempty = st.lists(st.sampled_from(_ODD_PARAMETERS), min_size=1, max_size=3).map(lambda parts: b"?" + b"&".join(parts))
    return st.one_of(st.just(b""), st.just(b""), nonempty)


@st.composite
def bodies(draw: st.DrawFn, good: Sequence[Json] | None) -> bytes:
    """Generate a good body with one value changed and sometimes its bytes too, or arbitrary JSON.

    Without ``good`` bodies, generate one that the route does not expect.
    """
    if good is None:
        return draw(st.sampled_from([b"", b"", b"{}", b'{"user_id":"ada"}', b"\xff", b"[", b"x" * 10_000]))
    value = draw(_change_value(draw(st.sampled_from(good)))) if draw(st.sampled_from([True] * 5 + [False])) else draw(_json())
    text = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return draw(_change_bytes(text)) if draw(st.sampled_from([False] * 4 + [True])) else text


def _json() -> st.SearchStrategy[Json]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    )


@st.composite
def _change_value(draw: st.DrawFn, valid: Json) -> Json:
    """Generate ``valid`` unchanged, or with one value replaced, removed or added."""
    value = copy.deepcopy(valid)
    places = _places(value)
    parent, key = draw(st.sampled_from(places or [(value, None)]))
    odd = draw(st.sampled_from(_ODD_VALUES) | _json())
    value_changes = ["replace", "replace", "replace", "remove"] if places else []  # an empty object has no values
    match draw(st.sampled_from([*value_changes, "add", "keep", "keep"])):
        case "replace":
            parent[key] = odd
        case "remove":
            del parent[key]
        case "add" if isinstance(parent, dict):
            parent[draw(st.sampled_from(["user_id", "tenant", "stream", "", "\x00", "x" * 300]) | st.text(max_size=8))] = odd
        case "add":
            parent.append(odd)
    return value


def _places(value: Json) -> list[tuple[Json, Json]]:
    """Return each container in ``value`` with each of its keys."""
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    return [(value, key) for key, _ in pairs] + [place for _, inner in pairs for place in _places(inner)]


@st.composite
def _change_bytes(draw: st.DrawFn, text: bytes) -> bytes:
    at = draw(st.integers(0, len(text)))
    return draw(
        st.sampled_from(
            [
                text[:at],
                text[:at] + draw(st.binary(min_size=1, max_size=3)) + text[at:],
                text + text,
                b"\xef\xbb\xbf" + text,
                text.decode("utf-8", "replace").encode("utf-16"),
                b" \n\t" + text + b"\r\n",
                text[:at] + b"\\ud800" + text[at:],
                text.replace(b'"', b"'"),
                text.replace(b"}", b',"model":1,"model":2}', 1),
                text.replace(b":", b":NaN,", 1),
                text.replace(b":", b":" + b"[" * 200, 1),
                text.replace(b":", b":" + b"9" * 5000, 1),
                draw(st.binary(max_size=40)),
            ]
        )
    )
