"""Bad input to every route: the answer is a 4xx in the envelope, and nothing changes."""

import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from infra.routes import ROUTES, Route, Surface
from spass.web.app import create_app
from spass.web.bodies import MAX_BODY_BYTES
from tests.functions.gateway import Gateway, escaped, openapi_document

PARAMETERS = {
    "name": "plain",
    "session_id": "",
    "index_id": "notes",
    "doc_id": "a",
    "upload_id": "upl_" + "0" * 26,
    "job_id": "job_" + "0" * 26,
    "approval_id": "apr_" + "0" * 26,
    "message_id": "m1",
    "request_id": "req_" + "0" * 26,
    "file": "swagger-ui.css",
    "asset": "app.js",
    "model": "small",
    "workspace_id": "notes",
    "operator_id": "nobody",
    "agent_id": "agt_" + "0" * 26,
    "run_id": "run_" + "0" * 26,
}
QUERIES = dict.fromkeys(("workspaces.file_get", "workspaces.file_put", "workspaces.file_delete"), "?path=a.md")
RAW: Mapping[str, tuple[bytes, Mapping[str, str]]] = {
    "workspaces.file_put": (b"x", {"Content-Type": "application/octet-stream"}),
    "workspaces.archive_put": (b"PK\x05\x06" + bytes(18), {"Content-Type": "application/zip"}),
}
"""The body and the headers of a valid request to a route whose body is bytes."""
ODD_SEGMENTS = [
    "..",
    ".",
    "%2e%2e",
    escaped("a/b"),
    escaped("\0"),
    escaped("ü"),
    escaped("\N{GRINNING FACE}"),
    "%ff%fe",
    "%ED%A0%80",
    escaped("a#b"),
    escaped("T#demo#SES#x"),
    escaped("a\r\nX-Evil: 1"),
    "x" * 5000,
    "ses_" + "z" * 26,
    "%",
    "+",
    "null",
]

BODIES: Mapping[str, bytes] = {
    "nothing": b"",
    "blanks": b"  ",
    "no JSON": b"{",
    "an array": b"[]",
    "null": b"null",
    "a number": b"7",
    "two objects": b"{}{}",
    "an unknown key": b'{"nonsense": 1}',
    "a duplicate key": b'{"message": "a", "message": "b"}',
    "NaN": b'{"message": NaN}',
    "half a surrogate pair": b'{"message": "\\ud800", "query": "\\ud800"}',
    "half a surrogate pair in a key": b'{"\\udc00": 1}',
    "no UTF-8": b'{"message": "\xff"}',
    "a body of objects": b'{"a":' * 100_000,
    "a body of arrays": b'{"message": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a large number": b'{"top_k": ' + b"9" * 5000 + b"}",
    "an infinite number": b'{"query": "x", "top_k": 1e400}',
    "a filter of no object": b'{"query": "x", "filter": [1]}',
    "an unknown operator": b'{"query": "x", "filter": {"year": {"$gt": 1}}}',
    "an operator without a list": b'{"query": "x", "filter": {"year": {"$in": 1}}}',
    "a score of no number": b'{"query": "x", "min_score": "0.5"}',
    "wrong types": b'{"message": 1, "query": [], "documents": "x", "title": {}, "model": 3, "input": 4, "messages": "x",'
    b' "text": 5, "metadata": 6, "filename": 7, "size": "8"}',
    "nulls": b'{"message": null, "query": null, "documents": null, "model": null, "messages": null, "input": null,'
    b' "text": null, "metadata": null, "filename": null}',
    "empty values": b'{"message": "", "query": "", "documents": [], "messages": [], "model": "", "input": "", "text": ""}',
    "no documents but items": b'{"documents": [1, "x", null, [], {}]}',
    "bad ids": json.dumps({"documents": [{"id": "../x", "text": "a"}]}).encode(),
    "the same id twice": json.dumps({"documents": [{"id": "a", "text": "a"}] * 2}).encode(),
    "a user": b'{"user_id": null}',
    "too many unknown keys": json.dumps({f"k{number}": 1 for number in range(999)}).encode(),
    "very many wrong items": b'{"documents": [' + b"1," * 100_000 + b'1], "messages": [1]}',
    "very many wrong items yet": json.dumps(
        {
            "documents": [{f"k{number}": 1 for number in range(199)}] * 64,
            "messages": [{"role": "user", "content": [1] * 5000}] * 5,
        }
    ).encode(),
    "too large": b" " * (MAX_BODY_BYTES + 1),
}

# A session may be created without a body.
FINE = {"/a1/agents/{name}/sessions": {"nothing", "blanks"}}


class Case(NamedTuple):
    route: Route
    path: str


def cases(session: str) -> Iterator[Case]:
    for route in ROUTES:
        yield Case(route, route.path.format(**PARAMETERS | {"session_id": session}))


@pytest.fixture
def session(gateway: Gateway) -> str:
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [{"id": "a", "text": "alpha"}]})
    return str(gateway.send("POST", "/a1/agents/plain/sessions").json["id"])


def _token(route: Route) -> str:
    """Return a token with which the route reads the body."""
    return "demo-admin-token" if route.module == "tenant.config_put" else "demo-token"


@pytest.mark.parametrize("name", BODIES)
def test_bad_bodies_are_refused_and_change_nothing(gateway: Gateway, session: str, name: str) -> None:
    before = gateway.stored()
    for route, path in cases(session):
        if route.method not in {"POST", "PATCH", "PUT"} or name in FINE.get(route.path, ()):
            continue
        keyed = {"Idempotency-Key": f"key-{route.module}"}
        for key in ({}, keyed) if len(BODIES[name]) < 100_000 else (keyed,):
            reply = gateway.send(route.method, path, raw=BODIES[name], headers=key, token=_token(route))
            assert reply.code is not None, (path, reply)
            assert 400 <= reply.status < 500, (path, reply)
            assert len(reply.text) < 20_000, path
    assert gateway.stored() == before
    assert gateway.model.requests == []


def test_bad_headers_are_refused_and_change_nothing(gateway: Gateway, session: str) -> None:
    before = gateway.stored()
    odd: list[tuple[Mapping[str, str], set[str]]] = [
        ({"Authorization": "Bearer nope"}, {"invalid_token"}),
        ({"Authorization": "Basic x"}, {"missing_token"}),
        ({"Authorization": "Bearer demo-token, Bearer other-token"}, {"invalid_token"}),
        ({"SPASS-Caller-Depth": "3"}, {"recursion_depth_exceeded"}),
        ({"SPASS-Caller-Depth": "x"}, {"invalid_request"}),
        ({"SPASS-User-Id": "a b"}, {"user_id_invalid"}),
        ({"SPASS-User-Id": "ada, bob"}, {"user_id_invalid"}),
        ({"SPASS-User-Id": "x" * 9000}, {"user_id_invalid"}),
    ]
    for route, path in cases(session):
        if route.public:
            continue
        for headers, codes in odd:
            assert gateway.send(route.method, path, headers=headers).code in codes, (path, headers)
        if path.startswith("/a1/"):
            assert gateway.send(route.method, path, user=None).code == "user_id_required"
            assert gateway.send(route.method, f"{path}?user_id=ada").code == "user_id_not_allowed"
    assert gateway.stored() == before


ODD_NAMES = ("nonsense", "Limit", "limit ", "agent[]", "group-by", "", "ü", "\0", "__proto__", "x" * 3000)


def test_unknown_names_in_the_query_are_refused_and_change_nothing(gateway: Gateway, session: str) -> None:
    """Routes without a caller take any query: browsers, load balancers and caches add to theirs."""
    before = gateway.stored()
    for route, path in cases(session):
        if route.public:
            assert gateway.send(route.method, f"{path}?nonsense=1").code != "invalid_request", path
            continue
        operation = openapi_document()["paths"][route.path][route.method.lower()]
        known = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
        for name in {*ODD_NAMES, *(f"{one}s" for one in known)}:
            query = "&".join([f"{escaped(name)}=1", *(f"{one}=1" for one in known)])
            refused = gateway.send(route.method, f"{path}?{query}", token="demo-admin-token", headers={"Idempotency-Key": "k"})
            error = refused.json["error"]
            assert (refused.code, error["param"]) == ("invalid_request", name[:64]), (path, name)
            assert [report["loc"] for report in error["details"]["errors"]] == [["query", name[:64]]]
            assert all(one in error["message"] for one in known), "the message names what the route takes"
            if route.method == "GET":
                assert gateway.send("HEAD", f"{path}?{query}", token="demo-admin-token").status == 400
        for name in known:
            refused = gateway.send(route.method, f"{path}?{name}={'9' * 9000}", token="demo-admin-token")
            assert not (refused.code and "is not a parameter" in refused.json["error"]["message"]), (path, name)
    assert gateway.stored() == before


def test_every_unknown_name_in_the_query_is_reported(gateway: Gateway) -> None:
    names = [f"n{number}" for number in range(30)]
    refused = gateway.send("GET", f"/v1/usage?user=ann&agent=plain&{'&'.join(names)}").json["error"]
    assert refused["message"] == ('"user" is not a parameter of this route (and 30 more). It takes: group_by, agent, from, to.')
    assert [report["loc"][1] for report in refused["details"]["errors"]] == ["user", *names][:20]


CHAT: Mapping[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"temprature": "secret value"}, "temprature"),
        ({"messages": [{"role": "assistant"}]}, "messages.0"),
        ({"messages": [{"role": "secret value", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": 7, "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": ["secret value"]}, "messages.0"),
        ({"messages": None}, "messages"),
        ({"model": None}, "model"),
        ({"tool_choice": "secret value"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream_options": {"include_usage": "secret value"}, "stream": True}, "stream_options.include_usage"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"stream": "secret value", "stream_options": {}}, "stream"),
    ],
)
def test_an_error_names_the_field_and_does_not_repeat_the_value(gateway: Gateway, change: Mapping[str, Any], param: str) -> None:
    reply = gateway.send("POST", "/v1/chat/completions", body={**CHAT, **change})
    assert reply.code == "invalid_request"
    assert reply.json["error"]["param"] == param
    assert ".".join(map(str, reply.json["error"]["details"]["errors"][0]["loc"])) == f"body.{param}"
    assert "secret" not in reply.text


@pytest.mark.parametrize(
    ("method", "target", "body", "loc"),
    [
        ("DELETE", "/v1/usage?=a", None, ["query", ""]),
        ("POST", "/v1/chat/completions", {**CHAT, "": 1}, ["body", ""]),
        ("POST", "/v1/embeddings", {"model": "mini-embed", "input": "a", "": 1}, ["body", ""]),
        ("PUT", "/v1/tenant/config", {"": 1}, ["body", ""]),
        ("POST", "/v1/tools/execute", {"name": "calculator", "arguments": {"expression": "1", "": 1}}, ["body", "arguments", ""]),
        ("POST", "/a1/agents/plain/sessions", {"": 1}, ["body", ""]),
        (
            "POST",
            "/a1/rag/indices/notes/documents",
            {"documents": [{"id": "a", "text": "a", "": 1}]},
            ["body", "documents", 0, ""],
        ),
    ],
)
def test_an_empty_name_is_located_in_the_error(
    gateway: Gateway, method: str, target: str, body: object, loc: list[object]
) -> None:
    before = gateway.stored()
    reply = gateway.send(method, target, body=body, token="demo-admin-token")
    assert (reply.status, reply.code) == (400, "invalid_request")
    error = reply.json["error"]
    assert error["param"] == ".".join(map(str, loc[1:]))
    assert loc in [report["loc"] for report in error["details"]["errors"]]
    assert '""' in error["message"]
    assert gateway.stored() == before


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/a1/agents/plain/sessions", {"title": "a\0b"}, "title"),
        ("/a1/agents/plain/chat", {"message": "a\0b"}, "message"),
        ("/a1/agents/plain/chat", {"message": " "}, "message"),
        ("/a1/rag/indices/notes/documents", {"documents": [{"id": "a", "text": "\0"}]}, "documents.0.text"),
        ("/a1/rag/indices/notes/documents/append", {"documents": [{"id": "a", "text": " \n"}]}, "documents.0.text"),
        ("/a1/rag/indices/notes/query", {"query": " "}, "query"),
        ("/a1/rag/indices/notes/query", {"query": "a" * 8193}, "query"),
        ("/a1/rag/indices/notes/query", {"query": "ü" * 4097}, "query"),
        ("/v1/tools/execute", {"name": "rag_query", "arguments": {"index_id": "notes", "query": "a" * 8193}}, "arguments.query"),
        ("/v1/tools/execute", {"name": "rag_query", "arguments": {"index_id": "notes", "query": "\0"}}, "arguments.query"),
        ("/v1/embeddings", {"model": "mini-embed", "input": ["a", "ü" * 16_385]}, "input"),
        ("PATCH /a1/rag/indices/notes/documents/a", {"text": " "}, "text"),
        ("PATCH /a1/rag/indices/notes/documents/a", {"text": "a\0b"}, "text"),
    ],
)
def test_blank_and_too_long_texts_are_refused(gateway: Gateway, session: str, path: str, body: object, param: str) -> None:
    texts_before = len(gateway.model.embedded_texts)
    method, _, path = path.rpartition(" ")
    reply = gateway.send(method or "POST", path, body=body, token="demo-admin-token")
    assert (reply.code, reply.json["error"]["param"]) == ("invalid_request", param)
    assert len(gateway.model.embedded_texts) == texts_before


def test_fields_of_documents_have_one_spelling(gateway: Gateway) -> None:
    good = {"id": "a", "text": "x"}
    for document, param in (
        ({"id": "-", "text": "x"}, "documents.1.id"),
        (good, "documents.1.id"),
        ({"id": "b", "text": "x" * 9000}, "documents.1.text"),
        ({"id": "b", "text": "x", "metadata": {"k": "x" * 9000}}, "documents.1.metadata"),
    ):
        reply = gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": [good, document]})
        assert reply.status == 400
        assert reply.code is not None
        assert reply.json["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"text": None}, "text"),
        ({"metadata": None}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"text": "x", "id": "b"}, "id"),
        ({"text": "x" * 8193}, "text"),
        ({"metadata": {"k": "x" * 2048}}, "metadata"),
    ],
)
def test_a_bad_patch_is_refused_with_the_place(gateway: Gateway, session: str, body: object, param: str | None) -> None:
    before = gateway.stored()
    reply = gateway.send("PATCH", "/a1/rag/indices/notes/documents/a", body=body)
    assert reply.code == ("document_too_large" if len(str(body)) > 2000 else "invalid_request")
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
    assert gateway.stored() == before


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"filter": None}, "filter"),
        ({"filter": "year"}, "filter"),
        ({"filter": {"year": {"$gt": 1990}}}, "filter"),
        ({"filter": {"year": {"$in": 1990}}}, "filter"),
        ({"min_score": "0.5"}, "min_score"),
        ({"min_score": True}, "min_score"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 51}, "top_k"),
    ],
)
def test_a_bad_query_is_refused_before_the_embedding(
    gateway: Gateway, session: str, change: Mapping[str, Any], param: str
) -> None:
    texts_before = len(gateway.model.embedded_texts)
    reply = gateway.send("POST", "/a1/rag/indices/notes/query", body={"query": "x", **change})
    assert (reply.code, reply.json["error"]["param"]) == ("invalid_request", param)
    assert reply.json["error"]["details"]["errors"][0]["loc"] == ["body", param]
    assert len(gateway.model.embedded_texts) == texts_before


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"filename": "a/b.md"}, "filename"),
        ({"filename": "..\\b.md"}, "filename"),
        ({"filename": "a\0.md"}, "filename"),
        ({"filename": ""}, "filename"),
        ({"filename": "letter.docx"}, "filename"),
        ({"filename": "x" * 300 + ".md"}, "filename"),
        ({"content_type": "markdown"}, "content_type"),
        ({"size": 0}, "size"),
        ({"size": -1}, "size"),
        ({"size": 1.5}, "size"),
        ({"size": 2**40}, "size"),
        ({"more": 1}, "more"),
    ],
)
def test_a_bad_upload_is_refused_with_the_place(gateway: Gateway, session: str, change: Mapping[str, Any], param: str) -> None:
    before = gateway.stored()
    body = {"filename": "notes.md", "content_type": "text/markdown", "size": 10, **change}
    reply = gateway.send("POST", "/a1/rag/indices/notes/uploads", body=body)
    assert (reply.code, reply.json["error"]["param"]) == ("invalid_request", param)
    assert gateway.stored() == before


@pytest.mark.parametrize(
    ("target", "body", "param", "suggested"),
    [
        ("/a1/rag/indices/notes/query", {"query": "x", "topk": 1}, "topk", "top_k"),
        ("/a1/rag/indices/notes/query", {"qery": "x"}, "qery", "query"),
        ("/a1/rag/indices/notes/documents/append", {"documents": [{"id": "a", "txt": "x"}]}, "documents.0.txt", "text"),
        ("/a1/rag/indices/notes/uploads", {"file_name": "a.md"}, "file_name", "filename"),
        ("/a1/agents/plain/chat", {"mesage": "x"}, "mesage", "message"),
        ("/v1/ask", {"input": "x", "param": {}}, "param", "params"),
        ("/v1/ask", {"input": "x", "params": {"max_tuns": 1}}, "params.max_tuns", "max_turns"),
        ("/a1/agents/plain/sessions", {"titel": "x"}, "titel", "title"),
        ("/v1/tools/execute", {"nam": "calculator"}, "nam", "name"),
        ("/v1/tools/execute", {"name": "calculator", "arguments": {"expresion": "1"}}, "arguments.expresion", "expression"),
        ("/v1/embeddings", {"model": "mini-embed", "imput": "x"}, "imput", "input"),
    ],
)
def test_a_misspelt_key_is_reported_with_a_suggestion(
    gateway: Gateway, session: str, target: str, body: object, param: str, suggested: str
) -> None:
    reply = gateway.send("POST", target, body=body)
    assert (reply.code, reply.json["error"]["param"]) == ("invalid_request", param)
    assert f"did you mean '{suggested}'?" in reply.json["error"]["message"]
    assert [report["type"] for report in reply.json["error"]["details"]["errors"]] == ["unknown_parameter"]


def test_param_locates_the_bad_argument_of_a_tool(gateway: Gateway, session: str) -> None:
    documents = [{"id": f"d{number}", "text": "x"} for number in range(3)]
    for last, key in (({"id": "d3"}, "text"), ({"id": "d3", "text": 3}, "text"), ({"id": "-", "text": "x"}, "id")):
        body = {"name": "rag_doc_append", "arguments": {"index_id": "notes", "documents": [*documents, last]}}
        reply = gateway.send("POST", "/v1/tools/execute", body=body)
        assert (reply.code, reply.json["error"]["param"]) == ("invalid_request", f"arguments.documents.3.{key}")


def test_bad_paths_are_refused_and_change_nothing(gateway: Gateway, session: str) -> None:
    before = gateway.stored()
    good: dict[str, Any] = {
        "sessions.create": {},
        "sessions.append": {"message": "x"},
        "agents.chat": {"message": "x"},
        "rag.query": {"query": "x"},
        "rag.replace": {"documents": [{"id": "z", "text": "z"}]},
        "rag.append": {"documents": [{"id": "z", "text": "z"}]},
        "rag.documents_patch": {"text": "z"},
        "rag.uploads_create": {"filename": "z.md", "content_type": "text/markdown", "size": 1},
        "workspaces.restore": {"version": 1},
        "managed.patch": {"name": "b"},
        "managed.message_send": {"content": "x"},
        "managed.run": {"input": "x"},
    }
    for route in ROUTES:
        for parameter in (name for name in PARAMETERS if f"{{{name}}}" in route.path):
            for segment in ODD_SEGMENTS:
                if parameter in {"index_id", "doc_id", "workspace_id"} and segment in {"null", "ses_" + "z" * 26}:
                    continue  # a valid name
                if parameter == "operator_id" and segment in {"null", "ses_" + "z" * 26, ".", "..", "%2e%2e"}:
                    continue  # likewise
                path = route.path.format(**PARAMETERS | {"session_id": session} | {parameter: segment})
                path += QUERIES.get(route.module, "")
                raw, sent = RAW.get(route.module, (None, {}))
                reply = gateway.send(route.method, path, body=good.get(route.module), raw=raw, headers=sent)
                assert reply.code is not None, (path, reply)
                assert reply.status in {400, 404}, (path, reply)
                assert "x-evil" not in {name.lower() for name in reply.headers}
    assert gateway.stored() == before


@pytest.mark.parametrize("escape", ["%2F", "%2f", "%5C", "%00"])
def test_an_escaped_separator_does_not_select_another_route(gateway: Gateway, session: str, escape: str) -> None:
    before = gateway.stored()
    for route in ROUTES:
        for parameter in (name for name in PARAMETERS if f"{{{name}}}" in route.path):
            path = route.path.format(**PARAMETERS | {"session_id": session} | {parameter: f"notes{escape}documents{escape}a"})
            expected = "model_not_found" if route.greedy and escape.lower() == "%2f" else "route_not_found"
            assert gateway.send(route.method, path).code == expected, path
    whole = create_app([importlib.import_module(f"functions.{route.module}").router for route in ROUTES], gateway.services)
    for method, path in (("DELETE", "/a1/rag/indices/notes%2Fdocuments%2Fa"), ("GET", "/a1/agents/plain%2fsessions")):
        assert gateway.send_to(whole, method, path).code == "route_not_found", path
    assert gateway.stored() == before


def test_every_get_also_answers_head_and_extra_slashes(gateway: Gateway, session: str) -> None:
    for route, path in cases(session):
        if route.method != "GET":
            continue
        get = gateway.send("GET", path)
        user = {"SPASS-User-Id": "ada"} if path.startswith(("/a1/", "/c1/")) else {}
        same = [("HEAD", path), ("GET", f"/{path}")]
        if route.surface is not Surface.PAGE:  # its addresses are relative, so a slash would change where they lead
            same.append(("GET", f"{path}/"))
        for method, target in same:
            reply = gateway.send(method, target, user=None, headers=user)
            assert reply.status == get.status, target
            assert reply.headers.keys() == get.headers.keys(), target
            assert reply.headers["content-length"] == get.headers["content-length"], target


@pytest.mark.parametrize(("prefix", "suffix"), [("", "/"), ("", "//"), ("/", ""), ("/", "/")])
def test_methods_that_change_data_need_the_exact_path(gateway: Gateway, session: str, prefix: str, suffix: str) -> None:
    """HTTP clients shorten ``…/indices/notes/documents/..`` to ``…/indices/notes/``, which must not delete the index."""
    before = gateway.stored()
    for route, path in cases(session):
        if route.method in {"DELETE", "PATCH", "PUT"}:
            reply = gateway.send(route.method, f"{prefix}{path}{suffix}", token="demo-admin-token", body={"text": "z"})
            assert reply.code == "route_not_found", path
            assert f"If you mean {path}, " in reply.json["error"]["message"]
    assert gateway.stored() == before


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=", "cursor=x", "cursor=%00", "cursor=" + "A" * 4000]
)
def test_bad_queries_are_refused_and_change_nothing(gateway: Gateway, session: str, query: str) -> None:
    for path in (
        "/a1/agents/plain/sessions",
        f"/a1/agents/plain/sessions/{session}/messages",
        "/a1/rag/indices",
        "/a1/rag/indices/notes/documents",
        "/a1/rag/indices/notes/uploads",
    ):
        assert gateway.send("GET", f"{path}?{query}").code == "invalid_request", path


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("group_by=tenant", "group_by"),
        ("group_by=", "group_by"),
        ("group_by=Agent", "group_by"),
        ("group_by=day&group_by=agent", "group_by"),
        ("agent=", "agent"),
        ("agent=a%23b", "agent"),
        ("agent=%00", "agent"),
        ("agent=" + "a" * 129, "agent"),
        ("agent=plain&agent=plain", "agent"),
        ("from=yesterday", "from"),
        ("from=2026-02-30", "from"),
        ("from=2026-4-1", "from"),
        ("from=20260401", "from"),
        ("from=1700000000", "from"),
        ("from=2026-04-01T00:00:00Z", "from"),
        ("from=%D9%A2026-04-01", "from"),
        ("from=0000-01-01", "from"),
        ("from=", "from"),
        ("from=2026-04-01&from=2026-04-01", "from"),
        ("to=2026-13-01", "to"),
        ("to=2026-04-01&to=2026-04-02", "to"),
        ("from=2026-04-02&to=2026-04-01", "to"),
    ],
)
def test_a_bad_usage_query_is_refused_with_the_place(gateway: Gateway, query: str, param: str) -> None:
    reply = gateway.send("GET", f"/v1/usage?{query}")
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", param)
    assert reply.json["error"]["details"]["errors"][0]["loc"] == ["query", param]


@pytest.mark.parametrize("query", ["from=2026-04-01", "agents=plain", "agent=", "agent=a&agent=b", "group_by=day", "x" * 9000])
def test_an_ambiguous_reset_is_refused(gateway: Gateway, session: str, query: str) -> None:
    before = gateway.stored()
    reply = gateway.send("DELETE", f"/v1/usage?{query}", token="demo-admin-token")
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert len(reply.text) < 2000
    assert gateway.stored() == before


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"embedding_model": "mini-embed"}, "embedding_model"),
        ({"compact_strategy": "sometimes"}, "compact_strategy"),
        ({"compact_keep_last_n": 201}, "compact_keep_last_n"),
        ({"compact_keep_last_n": "10"}, "compact_keep_last_n"),
        ({"compact_keep_last_n": 1.5}, "compact_keep_last_n"),
        ({"compact_observation_mask": "yes"}, "compact_observation_mask"),
        ({"compact_summary_model": "nobody"}, "compact_summary_model"),
        ({"compact_summary_model": "mini-embed"}, "compact_summary_model"),
        ({"system_prompt": 7}, "system_prompt"),
        ({"memory": ["x"]}, "memory"),
        ({"tools_enabled_default": "calculator"}, "tools_enabled_default"),
        ({"tools_enabled_default": ["calculator", "nothing"]}, "tools_enabled_default.1"),
        ({"rag_top_k": 0}, "rag_top_k"),
        ({"rag_top_k": True}, "rag_top_k"),
        ({"monthly_budget_usd": -1}, "monthly_budget_usd"),
        ({"monthly_budget_usd": "5"}, "monthly_budget_usd"),
        ({"tokens_per_minute": 0}, "tokens_per_minute"),
        ({"tokens_per_minute": 10**30}, "tokens_per_minute"),
        ({"memory": "fine", "rag_top_k": 51}, "rag_top_k"),
    ],
)
def test_a_bad_setting_is_refused_and_nothing_is_stored(gateway: Gateway, body: Mapping[str, Any], param: str) -> None:
    before = gateway.stored()
    reply = gateway.send("PUT", "/v1/tenant/config", body=body, token="demo-admin-token")
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", param)
    assert ".".join(map(str, reply.json["error"]["details"]["errors"][0]["loc"])) == f"body.{param}"
    assert gateway.stored() == before


def test_a_cursor_is_valid_only_for_its_own_list(gateway: Gateway, session: str) -> None:
    gateway.send("POST", "/a1/agents/plain/sessions")
    cursor = gateway.send("GET", "/a1/agents/plain/sessions?limit=1").json["next_cursor"]
    assert gateway.send("GET", f"/a1/agents/plain/sessions?cursor={cursor}").status == 200
    for user, token in (("bob", "demo-token"), ("ada", "sibling-token"), ("ada", "other-token")):
        reply = gateway.send("GET", f"/a1/agents/plain/sessions?cursor={cursor}", user=user, token=token)
        assert reply.code == "invalid_request"
