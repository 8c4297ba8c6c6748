"""Functions that call models may call the Bedrock models of the operator's file, and nothing else of Bedrock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import Environment as Target

from infra.config_files import bedrock_models
from infra.constructs.bedrock import bedrock_access
from infra.environments import DEV, Environment

from .conftest import CALLING, Deployment, actions_of

REGION = "eu-central-1"
PARTITION = {"Ref": "AWS::Partition"}
APPLICATION = f"arn:aws:bedrock:{REGION}:123456789012:application-inference-profile/abc123"
PROVISIONED = f"arn:aws:bedrock:{REGION}:123456789012:provisioned-model/def456"
INVOKES = {"bedrock:InvokeModel", "bedrock:InvokeModelWithResponseStream"}

Allowed = Callable[[str], list[dict[str, Any]]]


def _write(folder: Path, backends: str) -> Path:
    """Write a ``gateway.yaml`` with these backends."""
    file = folder / "operators.yaml"
    file.write_text(f"llm:\n  backends:\n{backends}\n")
    return file


@pytest.fixture
def allowed(tmp_path: Path) -> Allowed:
    """Return a function that makes the statements for these backends, in a stack with nothing else."""

    def allow(backends: str) -> list[dict[str, Any]]:
        stack = Stack(App(analytics_reporting=False), "Bare", env=Target(region=REGION))
        statements = bedrock_access(stack, bedrock_models(_write(tmp_path, backends))).statements
        return [stack.resolve(statement.to_statement_json()) for statement in statements]

    return allow


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


def test_only_functions_that_call_models_may_call_bedrock(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    allowed: Allowed,
    synthesize: Callable[[Environment], Deployment],
) -> None:
    """The synthesis also fails if the wildcards of the profiles are not acknowledged."""
    backends = f"""
    - provider: bedrock
      model_names: {{a: eu.anthropic.claude-sonnet-4-20250514-v1:0, b: '{APPLICATION}'}}
      supported_models: [amazon.titan-embed-text-v2:0]"""
    monkeypatch.setenv("SPASS_CONFIG", str(_write(tmp_path, backends)))
    deployment = synthesize(DEV)
    assert {name for name in deployment.functions() if _of_bedrock(deployment, name)} == CALLING
    for name in CALLING:
        statements = _of_bedrock(deployment, name)
        assert statements == allowed(backends)
        assert all(set(actions_of(statement)) == INVOKES for statement in statements)


def test_another_region_is_allowed_and_a_backend_with_a_key_needs_no_right(allowed: Allowed) -> None:
    (statement,) = allowed(
        """
    - {provider: bedrock, base_url: https://bedrock-runtime.us-east-1.amazonaws.com, supported_models: [amazon.nova-lite-v1:0]}
    - {name: keyed, provider: bedrock, api_key_env: BEDROCK_KEY, supported_models: [amazon.nova-pro-v1:0]}"""
    )
    assert _resources(statement) == [_model("us-east-1", "amazon.nova-lite-v1:0")]


def test_the_allowed_models_have_bedrocks_own_names(allowed: Allowed) -> None:
    (statement,) = allowed(
        """
    - {provider: bedrock, model_names: {claude: anthropic.claude-3-haiku-20240307-v1:0}, supported_models: [claude]}
    - {name: second, provider: bedrock, supported_models: [cohere.embed-multilingual-v3]}
    - {provider: openai, supported_models: [gpt-5-mini]}"""
    )
    assert _resources(statement) == [
        _model(REGION, "anthropic.claude-3-haiku-20240307-v1:0"),
        _model(REGION, "cohere.embed-multilingual-v3"),
    ]


@pytest.mark.parametrize("where", ["eu", "global"])
def test_a_profile_allows_its_model_in_any_region_through_the_profile(allowed: Allowed, where: str) -> None:
    name = "anthropic.claude-sonnet-4-20250514-v1:0"
    itself, behind = allowed(f"    - {{provider: bedrock, model_names: {{claude: '{where}.{name}'}}}}")
    assert _resources(itself) == [_profile(f"{where}.{name}")]
    assert "Condition" not in itself
    assert _resources(behind) == [_model("*", name), _model("", name)]
    assert behind["Condition"] == {"ArnEquals": {"bedrock:InferenceProfileArn": _profile(f"{where}.{name}")}}


def test_an_arn_is_allowed_unchanged_and_an_own_profile_with_any_model(allowed: Allowed) -> None:
    named, behind = allowed(f"    - {{provider: bedrock, model_names: {{a: '{APPLICATION}', b: '{PROVISIONED}'}}}}")
    assert _resources(named) == [APPLICATION, PROVISIONED]
    assert _resources(behind) == [_model("*", "*"), _model("", "*")]
    assert behind["Condition"] == {"ArnEquals": {"bedrock:InferenceProfileArn": APPLICATION}}
