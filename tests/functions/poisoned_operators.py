"""A gateway whose operators read hostile texts, and everything that the texts must not reach."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from spass.core.json import dump
from spass.testing.gateway import ScriptedServices
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve
from spass.testing.model import calls, in_turn
from tests.functions.gateway import CONFIG, Gateway, Reply
from tests.functions.injection_corpus import TOKENS
from tests.functions.managed_agents import ManagedClient
from tests.functions.obedient_director import HostileEditor
from tests.functions.obedient_operator import Made, ObedientOperator
from tests.functions.operator_orders import ORDERS, Call, InjectedText
from tests.functions.workspace_client import WorkspaceClient

ADMIN: Final = "demo-admin-token"
SECRET: Final = "PLAN-7391"
TENANTS: Final = (ADMIN, "other-token", "sibling-token")
TOOLS: Final = (
    "memory_store", "memory_search", "memory_read", "memory_write", "lineage_search", "rag_query", "rag_doc_get",
    "rag_index_create", "rag_index_delete", "rag_doc_append", "rag_doc_patch", "rag_doc_delete", "wikipedia_summary",
    "read_file", "aider_edit",
)  # fmt: skip
OPERATIVE: Final = ("guard",)
MONITORS: Final = ("graph", "facts", "pad")
_AXES: Final[Mapping[str, str]] = {
    "guard": "kind: operative",
    "vault": "kind: operative",
    "graph": "kind: monitor_operative",
    "facts": "kind: monitor_operative\nmemory_extraction: structured_json\nobservation_compression: truncate\n"
    "retrieval_strategy: keyword",
    "pad": "kind: monitor_operative\nmemory_extraction: scratchpad\nobservation_compression: none\nretrieval_strategy: semantic",
}
"""The agents. ``graph`` has the defaults of all axes."""
_WORKSPACE: Final = 'workspace: site\npaths: {write: ["**"]}\napproval: [aider_edit]\n'
VICTIMS: Final[Sequence[tuple[str, str | None, str]]] = (
    ("demo-token", "bob", "guard"),
    ("demo-token", "bob", "graph"),
    ("demo-token", "ada", "vault"),
    (ADMIN, None, "guard"),
    ("other-token", "ada", "guard"),
    ("sibling-token", "ada", "guard"),
)
"""Token, user and operator that no run may reach: those of another user, of the same user, of none, and of other tenants."""
DOCUMENTS: Final = {"documents": [{"id": "a", "text": "alpha"}, {"id": "b", "text": "beta"}]}
MEMORY: Final = "The team meets on Mondays."
_INDEX_DELETE: Final = Call("rag_index_delete", '{"index_id": "notes"}')


def configure(gateway: Gateway) -> None:
    """Let the gateway have the agents, a model with a large window, and an editor that changes every file it is shown."""
    settings = gateway.services.settings
    settings.config.write_text(CONFIG.replace("context_window: 8000", "context_window: 400000"))
    for name, axes in _AXES.items():
        text = f"name: {name}\nmodel: small\ntools: [{', '.join(TOOLS)}]\n{_WORKSPACE}{axes}\n"
        (settings.agents / f"{name}.yaml").write_text(text)
    gateway.services = ScriptedServices(settings, gateway.model, gateway.aws)
    gateway.services.editor = HostileEditor()


@dataclass
class PoisonedOperators:
    """A gateway in which ada's operators of ``OPERATIVE`` and ``MONITORS`` read ``texts``: ``ORDERS`` with real tokens."""

    gateway: Gateway
    model: ObedientOperator = field(default_factory=ObedientOperator)
    texts: Sequence[InjectedText] = ()
    managed: dict[ManagedClient, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Let the operators of others keep a state and notes. Fill indices, workspaces, the memory and mailboxes."""
        for token, user, operator in VICTIMS:
            kept = ("memory_store", {"content": f"{SECRET} of {user}", "key": "plan"})
            state = ("memory_store", {"content": f"{SECRET} is the state of {user}", "key": "state"})
            self.run_script([kept, state], operator, token=token, user=user)
            client = ManagedClient(self.gateway, user=user, token=token)
            self.managed[client] = client.create(agent="guard", name="of others")
            client.send("POST", f"/{self.managed[client]}/messages", {"content": f"{SECRET} for {user}"})
        self.fill()
        self.gateway.model.script = self.model.answer
        used = self._used_token()
        self.texts = [self._with_tokens(order, used) for order in ORDERS]
        for token in TENANTS:
            files = {"src/main.py": b"print('hello')\n"}
            files |= {f"inbox/{at}.txt": text.text.encode() for at, text in enumerate(self.texts) if token == ADMIN}
            assert WorkspaceClient(self.gateway, token=token).put_archive(files).status == 200
        documents = [{"id": f"r{at}", "text": text.text} for at, text in enumerate(self.texts)]
        self.send("/a1/rag/indices/inbox/documents", {"documents": documents})
        self.gateway.model.requests.clear()

    def fill(self) -> None:
        """Restore the index and the memory that the orders name."""
        for token in TENANTS:
            self.send("/a1/rag/indices/notes/documents", DOCUMENTS, token=token)
        self.send("/v1/tenant/config", {"memory": MEMORY}, method="PUT")

    def _used_token(self) -> str:
        """Return a token with which the index was deleted."""
        token = self.execute(_INDEX_DELETE)["confirm_token"]
        assert self.execute(Call(_INDEX_DELETE.tool, dump({"index_id": "notes", "confirm_token": token}))) == {"deleted": True}
        self.fill()
        return str(token)

    def _with_tokens(self, order: InjectedText, used: str) -> InjectedText:
        """Return ``order`` with tokens in the place of their names: of another call, used, made up, and of this very call, but of
        another user and another tenant."""
        if not any(name in order.text for name in TOKENS):
            return order
        tokens = dict.fromkeys(TOKENS, "AABqX" + "x" * 67) | {"USED": used}
        issued = {
            "OTHER_CALL": self.execute(Call("rag_doc_delete", '{"index_id": "notes", "doc_id": "none"}')),
            "OTHER_USER": self.execute(order.call, user="bob"),
            "OTHER_TENANT": self.execute(order.call, token="other-token"),
        }
        tokens |= {name: result["confirm_token"] for name, result in issued.items() if "confirm_token" in result}
        text = order.text
        for name, token in tokens.items():
            text = text.replace(name, token)
        return order._replace(text=text)

    def send(
        self, target: str, body: object = None, *, method: str = "POST", token: str = ADMIN, user: str | None = "ada"
    ) -> Reply:
        headers = {} if user is None else {"SPASS-User-Id": user}
        reply = self.gateway.send(method, target, token=token, user=None, headers=headers, body=body)
        assert reply.status == 200, reply.text
        return reply

    def get(self, target: str, *, token: str = ADMIN, user: str | None = "ada") -> Any:
        return self.send(target, method="GET", token=token, user=user).json

    def execute(self, call: Call, *, token: str = ADMIN, user: str | None = "ada") -> Any:
        """Return the result of a call over HTTP, or the error if it is refused."""
        body = {"name": call.tool, "arguments": json.loads(call.arguments)}
        headers = {} if user is None else {"SPASS-User-Id": user}
        reply = self.gateway.send("POST", "/v1/tools/execute", token=token, user=None, headers=headers, body=body).json
        return reply.get("result", reply)

    def ask(self, operator: str, text: str, *first: Made, token: str = ADMIN, user: str | None = "ada") -> Reply:
        """Run ``operator``, whose model first makes the calls ``first``."""
        self.model.first = first
        return self.send("/v1/ask", {"agent": operator, "input": text}, token=token, user=user)

    def run_script(self, made: Sequence[Made], operator: str, *, token: str = ADMIN, user: str | None = "ada") -> None:
        """Run ``operator``, whose model makes the calls ``made`` and obeys nothing."""
        self.gateway.model.script = in_turn([calls(*made), "Stored."])
        for result in self.ask(operator, "Remember the reports.", token=token, user=user).json["tool_results"]:
            assert result["success"], result
        self.gateway.model.script = self.model.answer

    def forget(self, operator: str) -> None:
        """Forget the state and the notes of ada's ``operator``. Its next run begins another session."""
        self.send(f"/v1/operators/{operator}", method="DELETE")

    def notes(self, operator: str) -> Sequence[Mapping[str, Any]]:
        """Return the notes of ada's ``operator``."""
        found: Sequence[Mapping[str, Any]] = self.get(f"/v1/operators/{operator}/notes?limit=1000")["notes"]
        return found

    def out_of_reach(self) -> Mapping[str, Any]:
        """Return everything that no order may change, as its owners see it."""
        seen: dict[str, Any] = {}
        for token, user, operator in VICTIMS:
            for path in (f"/v1/operators/{operator}", f"/v1/operators/{operator}/notes"):
                seen[f"{token} {user} {path}"] = self.get(path, token=token, user=user)
        for client, agent in self.managed.items():
            seen[agent] = (client.get(agent), client.messages(agent), client.runs(agent))
        for token in TENANTS:
            for index in self.get("/a1/rag/indices", token=token)["indices"]:
                documents = self.get(f"/a1/rag/indices/{index['id']}/documents?limit=1000", token=token)
                seen[f"{token} index {index['id']}"] = (index, documents)
            workspace = WorkspaceClient(self.gateway, token=token)
            seen[f"{token} workspace"] = (workspace.json(), workspace.json("/tree", limit=1000))
            seen[f"{token} memory"] = self.execute(Call("memory_read", "{}"), token=token)
        approvals = self.gateway.send("GET", "/a1/approvals?limit=1000", token=ADMIN).json["approvals"]
        seen["approvals"] = {approval["status"] for approval in approvals} | {"pending"}
        return seen

    def partitions(self) -> set[str]:
        """Return the partitions of the table that have items."""
        return {str(item["pk"]) for item in self.gateway.items()}


@contextmanager
def articles(texts: Sequence[InjectedText]) -> Iterator[None]:
    """Serve a Wikipedia in which the introductions of the articles 0, 1, … are the ``texts``."""

    def article(request: HttpRequest) -> HttpAnswer:
        (title,) = parse_qs(urlsplit(request.path).query)["titles"]
        return json_answer({"query": {"pages": [{"pageid": 1, "title": title, "extract": texts[int(title)].text}]}})

    with serve(article) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPASS_WIKIPEDIA_URL", url)
        yield


def as_made(call: Call) -> Made:
    """Return the call that a text orders as a model makes it."""
    return call.tool, json.loads(call.arguments)
