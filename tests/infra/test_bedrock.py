"""Functions that call models may call the Bedrock models of the operator's file, and nothing else of Bedrock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.environments import DEV, Environment

from .conftest import CALLING, Deployment, actions_of

REGION = "eu-central-1"
PARTITION = {"Ref": "AWS::Partition"}
APPLICATION = f"arn:aws:bedrock:{REGION}:123456789012:application-inference-profile/abc123"
PROVISIONED = f"arn:aws:bedrock:{REGION}:123456789012:provisioned-model/def456"
INVOKES = {"bedrock:InvokeModel", "bedrock:InvokeModelWithResponseStream"}

Synthesize = Callable[[Environment], Deployment]


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Return a function that sets the backends of the bundled file."""

    def bundle(backends: str) -> None:
        file = tmp_path / "operators.yaml"
        file.write_text(f"llm:\n  backends:\n{backends}\n")
        monkeypatch.setenv("SPASS_CONFIG", str(file))

    return bundle


def _of_bedrock(deployment: Deployment, function: str) -> list[dict[str, Any]]:
    return [one for one in deployment.statements(function) if any(name.startswith("bedrock:") for name in actions_of(one))]


def _resources(statement: dict[str, Any]) -> list[Any]:
    resources = statement["Resource"]
    return resources if isinstance(resources, list) else [resources]


def _model(region: str, name: str) -> dict[str, Any]:
    return {"Fn::Join": ["", ["arn:", PARTITION, f":bedrock:{region}::foundation-model/{name}"]]}


def _profile(name: str) -> dict[str, Any]:
    start = ["arn:", PARTITION, f":bedrock:{REGION}:", {"Ref": "AWS::AccountId"}]
    return {"Fn::Join": ["", [*start, f":inference-profile/{name}"]]}


def test_without_a_bedrock_backend_no_function_may_call_bedrock(dev: Deployment) -> None:
    assert not [name for name in dev.functions() if _of_bedrock(dev, name)]


def test_only_functions_that_call_models_may_call_bedrock(bundled: Callable[[str], None], synthesize: Synthesize) -> None:
    bundled("    - {provider: bedrock, supported_models: [amazon.titan-embed-text-v2:0]}")
    deployment = synthesize(DEV)
    assert {name for name in deployment.functions() if _of_bedrock(deployment, name)} == CALLING
    for name in CALLING:
        (statement,) = _of_bedrock(deployment, name)
        assert set(actions_of(statement)) == INVOKES
        assert _resources(statement) == [_model(REGION, "amazon.titan-embed-text-v2:0")]


def test_another_region_is_allowed_and_a_backend_with_a_key_needs_no_right(
    bundled: Callable[[str], None], synthesize: Synthesize
) -> None:
    bundled(
        """
    - {provider: bedrock, base_url: https://bedrock-runtime.us-east-1.amazonaws.com, supported_models: [amazon.nova-lite-v1:0]}
    - {name: keyed, provider: bedrock, api_key_env: BEDROCK_KEY, supported_models: [amazon.nova-pro-v1:0]}"""
    )
    (statement,) = _of_bedrock(synthesize(DEV), "chat-completions")
    assert _resources(statement) == [_model("us-east-1", "amazon.nova-lite-v1:0")]


def test_the_allowed_models_have_bedrocks_own_names(bundled: Callable[[str], None], synthesize: Synthesize) -> None:
    bundled(
        """
    - {provider: bedrock, model_names: {claude: anthropic.claude-3-haiku-20240307-v1:0}, supported_models: [claude]}
    - {name: second, provider: bedrock, supported_models: [cohere.embed-multilingual-v3]}
    - {provider: openai, supported_models: [gpt-5-mini]}"""
    )
    (statement,) = _of_bedrock(synthesize(DEV), "chat-completions")
    assert _resources(statement) == [
        _model(REGION, "anthropic.claude-3-haiku-20240307-v1:0"),
        _model(REGION, "cohere.embed-multilingual-v3"),
    ]


@pytest.mark.parametrize("where", ["eu", "global"])
def test_a_profile_allows_its_model_in_any_region_through_the_profile(
    bundled: Callable[[str], None], synthesize: Synthesize, where: str
) -> None:
    name = "anthropic.claude-sonnet-4-20250514-v1:0"
    bundled(f"    - {{provider: bedrock, model_names: {{claude: '{where}.{name}'}}}}")
    itself, behind = _of_bedrock(synthesize(DEV), "chat-completions")
    assert _resources(itself) == [_profile(f"{where}.{name}")]
    assert "Condition" not in itself
    assert _resources(behind) == [_model("*", name), _model("", name)]
    assert behind["Condition"] == {"ArnEquals": {"bedrock:InferenceProfileArn": _profile(f"{where}.{name}")}}


def test_an_arn_is_allowed_unchanged_and_an_own_profile_with_any_model(
    bundled: Callable[[str], None], synthesize: Synthesize
) -> None:
    bundled(f"    - {{provider: bedrock, model_names: {{a: '{APPLICATION}', b: '{PROVISIONED}'}}}}")
    named, behind = _of_bedrock(synthesize(DEV), "chat-completions")
    assert _resources(named) == [APPLICATION, PROVISIONED]
    assert _resources(behind) == [_model("*", "*"), _model("", "*")]
    assert behind["Condition"] == {"ArnEquals": {"bedrock:InferenceProfileArn": APPLICATION}}
