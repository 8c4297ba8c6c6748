"""An agent, the keys of its YAML file, and the body of a message to an agent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from spass.agents.kinds.base import BaseAgent
from spass.agents.kinds.registry import KINDS, UnknownKind
from spass.agents.parameters import parameter_fields
from spass.core.errors import InvalidRequest, ModelNotAllowed, SandboxUnavailable
from spass.core.ids import RAG_ID, Operator, OperatorId, RequestId, UserId, WorkspaceId
from spass.core.run_result import AgentRun
from spass.core.text_checks import limit_bytes, reject_blank
from spass.tenancy.config_problem import ConfigProblem
from spass.tenancy.scalars import TopK
from spass.tenancy.strict_body import StrictBody
from spass.tools.grants import NO_GRANTS, EditorSettings, Grants, PathPatterns

GRANTS: Final = tuple(field.name for field in fields(Grants))
"""The keys of an agent's file that say what its tools may do."""
DEFAULT_KIND: Final = "orchestrator"
OPERATOR_PARAMETER: Final = "operator_id"
"""The parameter of the kinds that remember. The default is the name of the agent's file, and none for a kind's key."""
MAX_MESSAGE_BYTES: Final = 256 * 1024
_MAX_CONTAINER_SECONDS: Final = 24 * 3600


class ContainerSettings(BaseModel):
    """The container of an agent. ``timeout`` is in seconds, ``mount_allowlist`` the path of a file, and ``workspace`` that of a
    folder in the container."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")] = "spass-sandbox:latest"
    timeout: Annotated[float, Field(gt=0, le=_MAX_CONTAINER_SECONDS)] = 300
    runtime: Literal["docker", "podman"] = "docker"
    mount_allowlist: str = ""
    mounts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    workspace: str = ""

    def check(self) -> None:
        """Check whether this machine has the runtime. Raise SandboxUnavailable if it does not."""
        from shutil import which

        if which(self.runtime) is None:
            message = f"This gateway cannot run this agent: it runs in a container, and {self.runtime} is not installed."
            raise SandboxUnavailable(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent: a kind with parameters, a model and tools.

    ``kind`` is a canonical key. ``parameters`` are valid values for fields of the kind; the others have their defaults.
    ``rag_index`` is searched before each prompt for ``rag_top_k`` passages; None means the tenant's setting. ``notices`` name
    parts of the agent's file that have no effect. ``grants`` is what the tools may do. ``container`` is where the agent runs, or
    None for this process.
    """

    name: str
    kind: str = DEFAULT_KIND
    model: str
    description: str = ""
    tools: tuple[str, ...] = ()
    rag_index: str | None = None
    rag_top_k: int | None = None
    grants: Grants = NO_GRANTS
    container: ContainerSettings | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[ConfigProblem, ...] = ()

    @property
    def operator_id(self) -> OperatorId | None:
        """Return the operator as which the agent runs, or None if nothing is stored."""
        return self.parameters.get(OPERATOR_PARAMETER)

    def operator_of(self, owner: UserId) -> Operator | None:
        """Return the operator of ``owner`` as which the agent runs, or None if nothing is stored."""
        return Operator(owner, self.operator_id) if self.operator_id is not None else None

    def build(self) -> BaseAgent:
        """Return the kind with its parameters. Raise ValueError if the kind refuses the values."""
        return KINDS.get(self.kind)(**self.parameters)

    def check_token(self, allows: Callable[[str], bool]) -> None:
        """Raise ModelNotAllowed if the caller's token, which ``allows`` models, may not use the agent's."""
        if not allows(self.model):
            raise ModelNotAllowed(f"This token may not use the model '{self.model}' of the agent '{self.name}'.")

    def session_workspace(self, wanted: WorkspaceId | None) -> WorkspaceId | None:
        """Return the workspace of a new session. ``wanted`` is that which the client names, if it names one. Raise InvalidRequest
        if the agent has no workspace."""
        if wanted is not None and self.grants.workspace is None:
            raise InvalidRequest(f"The agent '{self.name}' uses no workspace. Omit workspace.", param="workspace")
        return wanted or self.grants.workspace

    def run(self, request_id: RequestId) -> AgentRun:
        """Return the run of this agent for a request."""
        return AgentRun(request_id, self.name, self.kind, self.model)


def _canonical_kind(kind: str) -> str:
    try:
        return KINDS.canonical(kind)
    except UnknownKind as error:
        raise ValueError(str(error)) from None


def check_unique(tools: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(tools)) < len(tools):
        raise ValueError("a name is listed twice; list each name once")
    return tools


class AgentFile(BaseModel):
    """The keys that the files of all agents have. The parameters of the kind are further keys. A parameter with the name of one
    of these keys takes its place."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]
    kind: Annotated[str, AfterValidator(_canonical_kind)] = DEFAULT_KIND
    model: Annotated[str, Field(min_length=1)]
    description: str = ""
    tools: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(check_unique)] = ()
    rag_index: Annotated[str, Field(pattern=RAG_ID)] | None = None
    rag_top_k: TopK | None = None
    workspace: Annotated[WorkspaceId, Field(pattern=RAG_ID)] | None = None
    paths: PathPatterns = PathPatterns()
    approval: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(check_unique)] = ()
    delegates: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(check_unique)] = ()
    editor: EditorSettings = EditorSettings()
    container: ContainerSettings | None = None
    sandbox: ContainerSettings | None = None  # the earlier name of ``container``

    def spec(self) -> AgentSpec:
        """Return the agent that the file describes."""
        parameters = {field.name: getattr(self, field.name) for field in fields(KINDS.get(self.kind))}
        common = {name: getattr(self, name) for name in AgentFile.model_fields if name not in parameters}
        earlier_name = common.pop("sandbox", None)
        common["container"] = common["container"] or earlier_name
        grants = Grants(**{name: common.pop(name) for name in GRANTS if name in common})
        if OPERATOR_PARAMETER in parameters:
            parameters[OPERATOR_PARAMETER] = parameters[OPERATOR_PARAMETER] or self.name
        return AgentSpec(**common, grants=grants, parameters=parameters)


def file_model(kind: str) -> type[AgentFile]:
    """Return the model of the files of agents of the ``kind``. Raise UnknownKind if no kind has this key."""
    return _file_model(KINDS.get(kind))


@cache
def _file_model(kind: type[BaseAgent]) -> type[AgentFile]:
    parameters: dict[str, Any] = dict(parameter_fields(kind))
    return create_model("AgentFile", __base__=AgentFile, **parameters)


MessageText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_MESSAGE_BYTES,
        description=f"At most {MAX_MESSAGE_BYTES} bytes of UTF-8.",
        json_schema_extra={"pattern": r"\S"},
    ),
    AfterValidator(reject_blank),
    AfterValidator(limit_bytes(MAX_MESSAGE_BYTES)),
]


class MessageBody(StrictBody):
    """The body of a chat and of a session's turn. With `stream`, the answer is a stream of events."""

    message: MessageText
    stream: bool = False
