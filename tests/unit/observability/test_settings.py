"""The variables of the exporter of spans."""

from collections.abc import Mapping

import pytest

from spass.observability.settings import TracesMisconfigured, TracesSettings, read_pairs

ENDPOINT, URL = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:4318/v1/traces"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"


def test_without_an_endpoint_nothing_is_exported() -> None:
    assert TracesSettings.from_environment({}) is None
    assert TracesSettings.from_environment({ENDPOINT: "", "OTEL_TRACES_SAMPLER_ARG": "many"}) is None


def test_the_laptop_needs_the_endpoint_alone() -> None:
    assert TracesSettings.from_environment({ENDPOINT: URL}) == TracesSettings(
        endpoint=URL, sample=1.0, headers={}, resource={"service.name": "spass"}
    )


def test_a_function_says_what_it_is_and_signs_for_the_region_of_xray() -> None:
    settings = TracesSettings.from_environment(
        {
            ENDPOINT: "https://xray.eu-west-1.amazonaws.com/v1/traces",
            "OTEL_TRACES_SAMPLER_ARG": "0.05",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod",
            "SPASS_TRACES_SIGN": "xray",
            "AWS_LAMBDA_FUNCTION_NAME": "Spass-prod-ask",
            "AWS_REGION": "eu-west-1",
        }
    )
    assert settings is not None
    assert (settings.sample, settings.sign_for, settings.headers_parameter) == (0.05, "eu-west-1", None)
    assert settings.resource == {
        "service.name": "spass",
        "cloud.provider": "aws",
        "cloud.region": "eu-west-1",
        "faas.name": "Spass-prod-ask",
        "deployment.environment.name": "prod",
    }


def test_headers_are_pairs_whose_values_are_percent_encoded() -> None:
    pairs = read_pairs(HEADERS, " x-key = a%2Cb%3D , Authorization=Basic%20QQ%3D%3D,")
    assert pairs == {"x-key": "a,b=", "Authorization": "Basic QQ=="}


@pytest.mark.parametrize(
    "wrong",
    [
        {ENDPOINT: "localhost:4318"},
        {ENDPOINT: "ftp://localhost/"},
        {ENDPOINT: "http:///v1/traces"},
        {ENDPOINT: "http://me:secret@localhost/v1/traces"},
        {ENDPOINT: "http://localhost:port/"},
        {ENDPOINT: "http://[::1/"},
        {ENDPOINT: "http://localhost/ v1"},
        {HEADERS: "secret"},
        {HEADERS: "=secret"},
        {HEADERS: "x y=secret"},
        {HEADERS: "x=secret%0d%0ay: z"},
        {"OTEL_RESOURCE_ATTRIBUTES": "secret"},
        {"OTEL_TRACES_SAMPLER_ARG": "1.5"},
        {"OTEL_TRACES_SAMPLER_ARG": "nan"},
        {"OTEL_TRACES_SAMPLER_ARG": "some"},
    ],
)
def test_a_wrong_value_is_refused_with_its_variable_and_without_a_secret(wrong: Mapping[str, str]) -> None:
    (variable,) = wrong
    with pytest.raises(TracesMisconfigured, match=f"^{variable} must be ") as caught:
        TracesSettings.from_environment({ENDPOINT: URL, **wrong})
    assert "secret" not in str(caught.value)
