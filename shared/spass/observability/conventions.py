"""The names and attributes of spans: OpenTelemetry's semantic conventions, in the version of ``SCHEMA_URL``.

The conventions for generative AI are in development, so this is the one module that names them. A test compares every name with
the package of that version. No attribute contains text, arguments, results, user ids, tokens or URLs: paths are those of routes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from spass.core.bus_events import BusEvent

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

AttributeValue: TypeAlias = str | int | float
# Kinds of spans, as OTLP numbers them.
INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
CONSUMER: Final = 5

ERROR_TYPE: Final = "error.type"
PROVIDER: Final = "gen_ai.provider.name"
TENANT: Final = "spass.tenant"
REQUEST_ID: Final = "spass.request_id"
DROPPED_SPANS: Final = "spass.dropped_spans"
OTHER: Final = "_OTHER"
"""The value of an attribute whose real value is not known, or not one of those that the conventions know."""
REDACTED: Final = "REDACTED"

_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_PROVIDERS: Final[Mapping[str, str]] = {"bedrock": "aws.bedrock", "xai": "x_ai"}


@dataclass(frozen=True, slots=True)
class SpanForm:
    """The span of a START event and its END event. Its name is the operation and the field ``subject``.

    ``fields`` are the attributes that show a field of the events. That of the END event replaces that of the START event.
    ``constants`` are the attributes that each span of the form has.
    """

    operation: str
    kind: int
    subject: str
    fields: Mapping[str, str]
    constants: Mapping[str, AttributeValue] = field(default_factory=dict)

    def name(self, event: BusEvent) -> str:
        subject = getattr(event, self.subject)
        return f"{self.operation} {subject}" if subject is not None else self.operation

    def attributes(self, event: BusEvent) -> dict[str, AttributeValue]:
        """Return the attributes that ``event`` has. Amounts of money are numbers; the audit has the exact ones."""
        values = {attribute: getattr(event, name, None) for attribute, name in self.fields.items()}
        found = {
            name: value if isinstance(value, str | int) else float(value) for name, value in values.items() if value is not None
        }
        return {"gen_ai.operation.name": self.operation, **self.constants, **found}


_COMMON: Final[Mapping[str, str]] = {TENANT: "tenant", "gen_ai.agent.name": "agent", "gen_ai.conversation.id": "session_id"}
_USAGE: Final[Mapping[str, str]] = {
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.output_tokens": "completion_tokens",
    "spass.cost_usd": "cost_usd",
}
INVOKE_AGENT: Final = SpanForm(
    "invoke_agent", INTERNAL, "agent", {**_COMMON, **_USAGE, "spass.kind": "kind"}, constants={PROVIDER: "spass"}
)
EXECUTE_TOOL: Final = SpanForm(
    "execute_tool", INTERNAL, "tool", {**_COMMON, "gen_ai.tool.name": "tool"}, constants={"gen_ai.tool.name": OTHER}
)
CHAT: Final = SpanForm("chat", CLIENT, "model", {**_COMMON, **_USAGE, "gen_ai.request.model": "model"})
EMBEDDINGS: Final = replace(CHAT, operation="embeddings")
FORMS: Final = (INVOKE_AGENT, EXECUTE_TOOL, CHAT, EMBEDDINGS)


def provider_name(provider: str | None) -> str:
    """Return the conventions' name of a provider of ``gateway.yaml``."""
    return OTHER if provider is None else _PROVIDERS.get(provider, provider)


def request_name(method: str, route: str | None) -> str:
    """Return the name of the span of an HTTP request."""
    known = method if method in _METHODS else "HTTP"
    return f"{known} {route}" if route is not None else known


def request_attributes(method: str, scheme: str, route: str | None, status: int) -> dict[str, AttributeValue]:
    """Return the attributes of an HTTP request. What a user has chosen may be in its path, so the path is that of the route.
    ``status`` is 0 if there was no answer."""
    return {
        "http.request.method": method if method in _METHODS else OTHER,
        "url.scheme": scheme,
        "url.path": route or REDACTED,
        **({"http.route": route} if route is not None else {}),
        **({"http.response.status_code": status} if status else {}),
    }


def message_attributes(queue: str, message_id: str) -> dict[str, AttributeValue]:
    """Return the attributes of the processing of a message of SQS."""
    return {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": message_id,
    }
