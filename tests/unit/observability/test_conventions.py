"""The names of spans and attributes are those of the pinned version of OpenTelemetry's conventions."""

import importlib
import pkgutil
from typing import Any, Final

import pytest
from opentelemetry.semconv import attributes
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiOperationNameValues, GenAiProviderNameValues
from opentelemetry.semconv._incubating.attributes.messaging_attributes import MessagingOperationTypeValues, MessagingSystemValues
from opentelemetry.semconv.schemas import Schemas

from spass.models.provider_registry import PROVIDERS
from spass.observability.conventions import (
    CHAT,
    EMBEDDINGS,
    EXECUTE_TOOL,
    FORMS,
    INVOKE_AGENT,
    PROVIDER,
    SCHEMA_URL,
    message_attributes,
    provider_name,
    request_attributes,
    request_name,
)
from spass.observability.settings import TracesSettings
from tests.unit.bus_events import inference_end, tool_call_end, turn_end

OURS: Final = {"spass.tenant", "spass.cost_usd", "spass.kind", "spass.request_id", "spass.dropped_spans"}
# No provider of the conventions is a program on this machine or in this process.
OWN_PROVIDERS: Final = {"ollama", "embedded", "spass", "_OTHER"}


def known_attributes() -> set[str]:
    """Return the names of all attributes of the pinned version."""
    names: set[str] = set()
    for package in (attributes, importlib.import_module("opentelemetry.semconv._incubating.attributes")):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(found.name)).items()
            names |= {value for name, value in values if name.isupper() and isinstance(value, str)}
    return names


def test_the_schema_is_the_version_of_the_pinned_package() -> None:
    """A newer package fails here. Read what it changed before you raise the version."""
    assert [*Schemas][-1].value == SCHEMA_URL


def used() -> set[str]:
    events = (turn_end(), tool_call_end(), inference_end(), inference_end())
    pairs = zip((INVOKE_AGENT, EXECUTE_TOOL, CHAT, EMBEDDINGS), events, strict=True)
    found = {name for form, event in pairs for name in form.attributes(event)}
    found |= {name for form in FORMS for name in (*form.fields, *form.constants)}
    return found | {*request_attributes("GET", "https", "/a", 200), *message_attributes("runs", "m1"), PROVIDER, "error.type"}


def test_every_attribute_is_one_of_the_conventions_or_begins_with_spass() -> None:
    names = used()
    assert names - known_attributes() == names & OURS
    function = {"AWS_LAMBDA_FUNCTION_NAME": "ask", "AWS_REGION": "eu-west-1"}
    settings = TracesSettings.from_environment({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://localhost/", **function})
    assert settings is not None
    assert {*settings.resource, "deployment.environment.name"} <= known_attributes()


def test_operations_providers_and_systems_are_those_of_the_conventions() -> None:
    assert {form.operation for form in FORMS} <= {one.value for one in GenAiOperationNameValues}
    providers = {provider_name(name) for name in (*PROVIDERS, None)} | {str(INVOKE_AGENT.constants[PROVIDER])}
    assert providers - {one.value for one in GenAiProviderNameValues} == OWN_PROVIDERS
    message = message_attributes("runs", "m1")
    assert message["messaging.system"] == MessagingSystemValues.AWS_SQS.value
    assert message["messaging.operation.type"] == MessagingOperationTypeValues.PROCESS.value


@pytest.mark.parametrize(
    ("form", "event", "name"),
    [
        (INVOKE_AGENT, turn_end(), "invoke_agent helper"),
        (EXECUTE_TOOL, tool_call_end(), "execute_tool calculator"),
        (EXECUTE_TOOL, tool_call_end(tool=None), "execute_tool"),
        (CHAT, inference_end(), "chat small"),
        (EMBEDDINGS, inference_end(), "embeddings small"),
    ],
)
def test_the_name_of_a_span_is_its_operation_and_its_subject(form: Any, event: Any, name: str) -> None:
    assert form.name(event) == name


def test_a_call_of_a_model_has_its_tokens_cost_conversation_and_tenant() -> None:
    assert CHAT.attributes(inference_end()) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.agent.name": "helper",
        "gen_ai.conversation.id": "ses_1",
        "spass.tenant": "acme",
        "spass.cost_usd": 0.000125,
    }


def test_a_tool_that_does_not_exist_has_no_name_that_a_model_made_up() -> None:
    assert EXECUTE_TOOL.attributes(tool_call_end(tool=None))["gen_ai.tool.name"] == "_OTHER"


def test_a_request_without_a_route_shows_neither_its_path_nor_an_unknown_method() -> None:
    assert (request_name("GET", "/v1/ask"), request_name("GET", None), request_name("BREW", None)) == (
        "GET /v1/ask",
        "GET",
        "HTTP",
    )
    found = request_attributes("BREW", "https", None, 404)
    assert found == {
        "http.request.method": "_OTHER",
        "url.scheme": "https",
        "url.path": "REDACTED",
        "http.response.status_code": 404,
    }
