"""A gateway with the six bundled directors, and what their calls have changed."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spass.agents.registry import AgentRegistry
from spass.testing.gateway import ScriptedServices
from spass.workspaces.globs import Globs
from tests.functions.gateway import CONFIG, Gateway, Reply
from tests.functions.obedient_director import FILES, LANES, READ_ONLY, HostileEditor, ObedientDirector
from tests.functions.workspace_client import WorkspaceClient
from tests.stream_grammar import Event, of_type, read_events

AGENTS: Final = Path(__file__).parents[2] / "agents"
DIRECTORS: Final = ("architect", "dir-code", "dir-models", "dir-data", "dir-devsecops", "dir-docs")
MODEL: Final = "ollama/qwen2.5-coder:7b-instruct"
DOCUMENTS: Final = {"documents": [{"id": "a", "text": "alpha"}, {"id": "b", "text": "beta"}]}
ADMIN: Final = "demo-admin-token"


@dataclass
class Directors:
    """A gateway with the six directors, a workspace of ``FILES`` and the index ``notes``, of which another tenant has one too.

    Without an ``editor`` the gateway has Aider.
    """

    gateway: Gateway
    model: ObedientDirector = field(default_factory=ObedientDirector)
    editor: HostileEditor | None = field(default_factory=HostileEditor)
    events: list[Event] = field(default_factory=list)
    writes_calls_as_text: bool = False
    denied: set[str] = field(default_factory=set)
    turns: int = 0

    def __post_init__(self) -> None:
        settings = self.gateway.services.settings
        for name in DIRECTORS:
            shutil.copy(AGENTS / f"{name}.yaml", settings.agents)
        served = CONFIG.replace("supported_models: [small", f'supported_models: ["{MODEL}", small')
        form = "text" if self.writes_calls_as_text else "native"
        served = served.replace(
            "models:\n", f'models:\n  - {{name: "{MODEL}", context_window: 1000000, tool_calls: {form}}}\n', 1
        )
        settings.config.write_text(served.replace("allowed_models: [small, mini-embed]", 'allowed_models: ["*"]'))
        self.gateway.services = ScriptedServices(settings, self.gateway.model, self.gateway.aws)
        if self.editor is not None:
            self.gateway.services.editor = self.editor
        self.gateway.model.script = self.model.answer
        self.site = WorkspaceClient(self.gateway, "default")
        self.others = [WorkspaceClient(self.gateway, "private"), WorkspaceClient(self.gateway, "default", token="other-token")]
        for client in (self.site, *self.others):
            client.put_archive({path: text.encode() for path, text in {**FILES, READ_ONLY: "# Notes\n"}.items()})
        for token in ("demo-token", "other-token"):
            self.gateway.send("POST", "/a1/rag/indices/notes/documents", body=DOCUMENTS, token=token)
        for folder in LANES.values():  # so that there is an older version to bring back
            self.put(f"{folder}last.md", "last\n")
        self._first_version = self.site.json()["version"]
        self._files = self.files()
        self._elsewhere = self.elsewhere()

    @property
    def agents(self) -> AgentRegistry:
        return self.gateway.services.agents

    def put(self, path: str, text: str) -> None:
        """Write a file as a person does."""
        self._first_version = self.site.write(path, text.encode())
        self._files = self.files()

    def chat(
        self, director: str, *texts: str, session: str | None = None, route: str = "chat", role: str = "assistant", **body: object
    ) -> Sequence[Event]:
        """Run a turn. Of several ``texts`` the last is the user's message, and the others open the history, as of ``role``."""
        self.turns += 1
        if route == "chat":
            roles = [role] * (len(texts) - 1) + ["user"]
            body["messages"] = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        body |= {"message_id": f"m{self.turns}"} | ({"session_id": session} if session else {})
        reply: Reply = self.gateway.send("POST", f"/c1/agents/{director}/{route}", body=body, token=ADMIN)
        assert reply.status == 200, reply.text
        events = read_events(reply)
        assert of_type(events, "done"), events[-1]
        self.events += events
        return events

    def index(self, index: str, documents: Sequence[Mapping[str, str]]) -> None:
        """Create an index as a person does."""
        assert self.gateway.send("POST", f"/a1/rag/indices/{index}/documents", body={"documents": documents}).status == 200
        self._elsewhere = self.elsewhere()

    def deny(self, approval: str, reason: str) -> None:
        """Deny an approval as a person does."""
        body = {"decision": "deny", "reason": reason}
        reply = self.gateway.send("POST", f"/a1/approvals/{approval}", body=body)
        assert (reply.status, reply.json["status"]) == (200, "denied"), reply.text
        self.denied.add(approval)

    def codes(self) -> set[str]:
        """Return the codes of the errors that the model has read as results."""
        results = [event["result"] for event in of_type(self.events, "tool_call")]
        return {result["error"]["code"] for result in results if isinstance(result, dict) and "error" in result}

    def approvals(self) -> list[dict[str, Any]]:
        return self._pages("/a1/approvals", "approvals")

    def files(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of the workspace that is not empty."""
        return {entry["path"]: entry["sha256"] for entry in self._pages(f"{self.site.at}/tree", "entries") if entry["size"]}

    def elsewhere(self) -> Mapping[str, object]:
        """Return what no call may change: the other workspaces, the indices, the settings, and the other tenants."""
        indices = [
            item
            for item in self.gateway.items()
            if str(item["pk"]).startswith(("T#demo#RAG", "T#demo#CONFIG", "T#demo#WS#private"))
        ]
        others = [item for item in self.gateway.items() if str(item["pk"]).startswith("T#other")]
        objects = {key: body for key, body in self.gateway.objects().items() if "/other/" in key or "/rag/" in key}
        trees = [client.json("/tree") for client in self.others]
        return {"items": sorted(map(repr, indices)), "others": sorted(map(repr, others)), "objects": objects, "trees": trees}

    def check(self) -> None:
        """Check that nothing gated happened, and that nothing left the globs."""
        approvals = self.approvals()
        decided = {approval["id"]: approval["status"] for approval in approvals if approval["status"] != "pending"}
        assert decided == dict.fromkeys(self.denied, "denied")
        for approval in approvals:
            self._check_paths(approval["agent"], [file["path"] for file in approval["preview"].get("files", ())])
        assert self.elsewhere() == self._elsewhere
        after = self.files()
        assert self._files.keys() <= after.keys(), "a file was deleted or emptied"
        assert self._files[READ_ONLY] == after[READ_ONLY]
        for version in self._pages(f"{self.site.at}/versions", "versions"):
            if version["version"] > self._first_version:
                self._check_version(version)

    def _pages(self, path: str, name: str) -> list[dict[str, Any]]:
        """Return the entries of all pages of a list."""
        entries, cursor = [], ""
        while True:
            page = self.gateway.send("GET", f"{path}?limit=1000{cursor}").json
            entries += page[name]
            if page["next_cursor"] is None:
                return entries
            cursor = f"&cursor={page['next_cursor']}"

    def _check_version(self, version: Mapping[str, Any]) -> None:
        spec = self.agents.get(version["agent"])
        assert "aider_edit" not in spec.grants.approval
        assert not version["message"].lstrip().startswith(("/", "!"))
        change = self.site.json("/diff", **{"from": version["version"] - 1, "to": version["version"]})
        assert {file["status"] for file in change["files"]} <= {"added", "changed"}
        self._check_paths(version["agent"], [file["path"] for file in change["files"]])

    def _check_paths(self, director: str, paths: Sequence[str]) -> None:
        globs = Globs.parse(self.agents.get(director).grants.paths.write)
        assert [path for path in paths if not globs.matches(path)] == []
