"""`gateway.yaml`: its values, and the messages for its problems."""

import hashlib
import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from local.models import TOKENS
from spass.core.errors import ModelNotFound
from spass.models.backends import all_key_variables, check_backend, serves
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tenancy.yaml_source import ConfigError

SHIPPED = Path(__file__).parents[3] / "gateway.yaml"
HASH = "ab" * 32

BUNDLED_CHAT_MODELS = {
    "claude-opus-4.7": False,
    "claude-sonnet-4.6": True,
    "claude-haiku-4.5": True,
    "gpt-5.2": False,
    "gpt-5-mini": False,
    "grok-4": True,
    "llama-4-scout": True,
    "ollama/qwen2.5-coder:7b-instruct": True,
    "groq-llama-4-scout": True,
}
"""Names of models, with their ``sampling``."""

VALID = """\
llm:
  backends:
    - provider: openai
      api_key_env: OPENAI_API_KEY
      supported_models: [llama-4-scout]
models:
  - {name: llama-4-scout, context_window: 1000, usd_per_mtok_in: 0.15}
  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}
"""


@pytest.fixture(autouse=True)
def _in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # messages name the file relative to it


def load(tmp_path: Path, text: str) -> GatewayConfig:
    path = tmp_path / "gateway.yaml"
    path.write_text(text, encoding="utf-8")
    return load_gateway_config(path, check_backend=check_backend)


def load_problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value).splitlines()


def with_tenants(*lines: str) -> str:
    return VALID + "tenants:\n" + "".join(f"  {line}\n" for line in lines)


# Operators edit the shipped file. Their additions must not fail these tests.


def test_the_shipped_file_loads_and_has_no_public_tokens() -> None:
    config = load_gateway_config(SHIPPED)
    public = {hashlib.sha256(token.encode()).hexdigest() for tokens in TOKENS.values() for token in tokens}
    placeholders = {digit * 64 for digit in "01"}
    assert not {token.sha256 for tenant in config.tenants for token in tenant.tokens} & (public | placeholders)
    assert {config.model(name).kind for name in ("claude-opus-4.7", "llama-4-scout")} == {"chat"}
    assert config.model(config.defaults.embedding_model).dimensions == 384


def test_the_shipped_file_marks_the_models_that_refuse_sampling() -> None:
    config = load_gateway_config(SHIPPED)
    assert {name: config.model(name).sampling for name in BUNDLED_CHAT_MODELS} == BUNDLED_CHAT_MODELS


@pytest.mark.parametrize(
    ("field", "default", "other", "must"),
    [
        ("sampling", True, False, "be true or false"),
        ("begins_thinking", False, True, "be true or false"),
        ("tool_calls", "native", "text", "be one of 'native' or 'text'"),
    ],
)
def test_a_field_of_a_model_has_a_default_and_one_other_value(
    tmp_path: Path, field: str, default: object, other: object, must: str
) -> None:
    def with_value(value: object) -> str:
        return VALID.replace("usd_per_mtok_in: 0.15", f"{field}: {json.dumps(value)}")

    assert getattr(load(tmp_path, VALID).model("llama-4-scout"), field) == default
    assert getattr(load(tmp_path, with_value(other)).model("llama-4-scout"), field) == other
    assert load_problems(tmp_path, with_value("maybe")) == [f"gateway.yaml:7: models[0].{field}: must {must}"]


def test_the_shipped_file_marks_the_models_that_write_their_calls_as_text() -> None:
    config = load_gateway_config(SHIPPED)
    marked = {model.name for model in config.models if model.tool_calls == "text"}
    assert marked == {"llama-4-scout", "ollama/qwen2.5-coder:7b-instruct"}


def test_every_model_of_the_shipped_file_has_a_backend() -> None:
    config = load_gateway_config(SHIPPED)
    assert {
        model.name for model in config.models if not any(serves(backend, model.name) for backend in config.llm.backends)
    } == set()


def test_the_example_backend_and_model_of_the_shipped_file_load_when_uncommented(tmp_path: Path) -> None:
    config = load(tmp_path, uncomment(SHIPPED.read_text(encoding="utf-8"), "- name: ollama", "- {name: nomic"))
    assert "ollama" in {backend.name for backend in config.llm.backends}
    assert config.model("nomic-embed-text-v1.5").dimensions == 768


def test_the_example_tenant_of_the_shipped_file_loads_when_uncommented(tmp_path: Path) -> None:
    shipped = SHIPPED.read_text(encoding="utf-8")
    if "  # - id: " not in shipped:  # an operator has put a tenant in its place
        assert load(tmp_path, shipped).tenants
        return
    catalogue, _, below = shipped.partition("tenants:\n")
    example = "".join(line for line in below.splitlines(keepends=True) if line.startswith("  #"))
    config = load(tmp_path, f"{catalogue}tenants:\n{uncomment(example, '- id: ')}")
    assert [token.id for token in config.tenants[0].tokens] == ["acme-admin", "acme-app"]
    assert config.tenants[0].defaults.model_fields_set


def uncomment(text: str, *openings: str) -> str:
    """Return ``text`` with the comment signs removed from the list entries with these openings, nested lines included."""
    pattern = "|".join(map(re.escape, openings))
    return re.sub(rf"(?m)^( +)# (?:{pattern}).*\n(?:\1# +  .*\n)*", lambda entry: re.sub("(?m)^( +)# ", r"\1", entry[0]), text)


def test_the_default_name_of_a_backend_is_its_provider(tmp_path: Path) -> None:
    config = load(tmp_path, VALID)
    assert config.llm.backends[0].name == "openai"
    assert config.llm.strategy == "failover"


def test_prices_are_exact_decimals(tmp_path: Path) -> None:
    assert load(tmp_path, VALID).model("llama-4-scout").usd_per_mtok_in == Decimal("0.15")


def test_a_model_outside_the_catalogue_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load(tmp_path, VALID).model("llama-5")


def test_an_agent_in_place_of_a_model_is_named_as_such(tmp_path: Path) -> None:
    config = load(tmp_path, VALID)
    with pytest.raises(ModelNotFound, match="'agent/researcher' names an agent, and this call needs a model"):
        config.model("agent/researcher")


@pytest.mark.parametrize(
    ("part", "instead", "problem"),
    [
        (
            "api_key_env: OPENAI_API_KEY",
            "api_key: sk-secret",
            "4: llm.backends[0]: unknown key 'api_key'; do not write a key here; name its variable: api_key_env",
        ),
        (", context_window: 1000", "", "7: models[0]: the key 'context_window' is missing"),
    ],
)
def test_a_missing_key_or_one_that_holds_a_secret_is_reported(tmp_path: Path, part: str, instead: str, problem: str) -> None:
    assert load_problems(tmp_path, VALID.replace(part, instead)) == [f"gateway.yaml:{problem}"]


def test_a_key_in_place_of_its_variable_is_refused_and_not_repeated(tmp_path: Path) -> None:
    (problem,) = load_problems(tmp_path, VALID.replace("OPENAI_API_KEY", "sk-proj-abcdef123"))
    assert problem.startswith("gateway.yaml:4: llm.backends[0].api_key_env: must be the name of an environment variable")
    assert "sk-" not in problem


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("    timeot: 5", "gateway.yaml:5: llm.backends[0]: unknown key 'timeot'; did you mean 'timeout'?"),
        ("    timeout: -1", "gateway.yaml:5: llm.backends[0].timeout: must be greater than 0"),
        ("    timeout: .nan", "gateway.yaml:5: llm.backends[0].timeout: must be a number"),
        ("    timeout: soon", "gateway.yaml:5: llm.backends[0].timeout: must be a number"),
        ("    max_concurrent: 0", "gateway.yaml:5: llm.backends[0].max_concurrent: must be greater than 0"),
        ("    max_concurrent: true", "gateway.yaml:5: llm.backends[0].max_concurrent: must be a whole number"),
        ("    max_concurrent: 1.5", "gateway.yaml:5: llm.backends[0].max_concurrent: must be a whole number"),
        ("    name: 5", "gateway.yaml:5: llm.backends[0].name: must be text; put it in quotes"),
        ("    base_url: api.example.com", "gateway.yaml:5: llm.backends[0].base_url: must be a URL such as"),
        ("    base_url: http://[::1", "gateway.yaml:5: llm.backends[0].base_url: must be a URL such as"),
        ("    base_url: https://example.com:99999", "gateway.yaml:5: llm.backends[0].base_url: must be a URL such as"),
        ("    base_url: https://:80", "gateway.yaml:5: llm.backends[0].base_url: must be a URL such as"),
        ("    base_url: https://me:secret@example.com", "gateway.yaml:5: llm.backends[0].base_url: must be a URL such as"),
        ("    model_names: [a]", "gateway.yaml:5: llm.backends[0].model_names: must be a mapping of keys to values"),
        (
            "    model_names: {llama-4-skout: x}",
            "gateway.yaml:5: llm.backends[0].model_names.llama-4-skout: 'llama-4-skout' is not a model of the catalogue",
        ),
    ],
)
def test_a_bad_line_is_reported_with_what_it_must_be(tmp_path: Path, line: str, problem: str) -> None:
    (first,) = load_problems(tmp_path, VALID.replace("      supported_models", f"  {line}\n      supported_models"))
    assert first.startswith(problem)


def test_an_unknown_provider_gets_a_list_of_providers(tmp_path: Path) -> None:
    (problem,) = load_problems(tmp_path, VALID.replace("provider: openai", "provider: opnai"))
    assert problem.startswith("gateway.yaml:3: llm.backends[0].provider: must be one of 'xai', 'anthropic', 'openai'")
    assert problem.endswith("did you mean 'openai'?")


@pytest.mark.parametrize("strategy", ["failover", "round-robin", "least-loaded"])
def test_a_strategy_is_one_of_three(tmp_path: Path, strategy: str) -> None:
    assert load(tmp_path, VALID.replace("llm:\n", f"llm:\n  strategy: {strategy}\n")).llm.strategy == strategy
    (problem,) = load_problems(tmp_path, VALID.replace("llm:\n", f"llm:\n  strategy: {strategy}s\n"))
    assert problem.startswith("gateway.yaml:2: llm.strategy: must be one of 'failover', 'round-robin' or 'least-loaded'")


def test_all_problems_are_reported_in_the_order_of_lines(tmp_path: Path) -> None:
    text = VALID.replace("provider: openai", "provider: openai\n      bogus: 1").replace(
        "context_window: 1000", "context_window: many"
    )
    assert [problem.split(": ")[0] for problem in load_problems(tmp_path, text + "surprise: 1\n")] == [
        "gateway.yaml:4",
        "gateway.yaml:8",
        "gateway.yaml:10",
    ]


def test_an_embedding_model_needs_dimensions_and_a_chat_model_has_none(tmp_path: Path) -> None:
    (missing,) = load_problems(tmp_path, VALID.replace(" dimensions: 384,", ""))
    assert "models[1]: the key 'dimensions' is missing" in missing
    (odd,) = load_problems(tmp_path, VALID.replace("context_window: 1000", "context_window: 1000, dimensions: 3"))
    assert "models[0]: 'dimensions' belongs to embedding models" in odd


@pytest.mark.parametrize(
    ("defaults", "problem"),
    [
        (
            "{embedding_model: llama-4-scout}",
            "'llama-4-scout' is not an embedding model of the catalogue under models; known: all-minilm-l6-v2",
        ),
        (
            "{compact_summary_model: all-minilm-l6-v2}",
            "'all-minilm-l6-v2' is not a chat model of the catalogue; known: llama-4-scout",
        ),
        ("{compact_strategy: atuo}", "must be one of 'auto', 'manual' or 'off'; did you mean 'auto'?"),
        ("{compact_keep_last_n: 201}", "must be less than or equal to 200"),
        ("{rag_top_k: 0}", "must be greater than or equal to 1"),
    ],
)
def test_defaults_are_checked(tmp_path: Path, defaults: str, problem: str) -> None:
    (first,) = load_problems(tmp_path, VALID + f"defaults: {defaults}\n")
    assert first.startswith("gateway.yaml:9: defaults.")
    assert problem in first


@pytest.mark.parametrize(
    ("search", "variable"),
    [
        ("{provider: tavily}", "TAVILY_API_KEY"),
        ("{provider: tavily, api_key_env: MY_KEY}", "MY_KEY"),
        ("{provider: tavily, base_url: https://tavily.example.com}", None),
        ("{provider: searxng, base_url: https://searx.example.com/}", None),
        ("{provider: searxng, base_url: http://127.0.0.1:8080, api_key_env: MY_KEY}", "MY_KEY"),
        ("{}", None),
    ],
)
def test_a_search_provider_has_the_variable_of_its_key(tmp_path: Path, search: str, variable: str | None) -> None:
    config = load(tmp_path, VALID + f"search: {search}\n")
    assert config.search.key_variable == variable
    assert [name for name in all_key_variables(config) if name != "OPENAI_API_KEY"] == [variable] * (variable is not None)


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        ("{provider: searxng}", "search: the key 'base_url' is missing"),
        ("{base_url: https://searx.example.com}", "search: the key 'provider' is missing; write searxng or tavily"),
        ("{api_key_env: MY_KEY}", "search: the key 'provider' is missing; write searxng or tavily"),
        ("{provider: tavly}", "search.provider: must be one of 'searxng' or 'tavily'; did you mean 'tavily'?"),
        ("{provider: searxng, base_url: http://searx.example.com}", "search.base_url: must begin with https"),
        ("{provider: searxng, base_url: https://me:secret@searx.example.com}", "search.base_url: must be a URL such as"),
        ("{provider: searxng, url: https://searx.example.com}", "search: unknown key 'url'; write base_url"),
        ("{provider: tavily, api_key: tvly-1}", "search: unknown key 'api_key'; do not write a key here"),
        ("{provider: tavily, api_key_env: tvly-secret}", "search.api_key_env: must be the name of an environment variable"),
    ],
)
def test_a_bad_search_provider_is_reported_with_what_to_write(tmp_path: Path, search: str, problem: str) -> None:
    first, *_ = load_problems(tmp_path, VALID + f"search: {search}\n")
    assert first.startswith(f"gateway.yaml:9: {problem}")
    assert "secret" not in first


def test_the_example_search_provider_of_the_shipped_file_loads_when_uncommented(tmp_path: Path) -> None:
    config = load(tmp_path, SHIPPED.read_text(encoding="utf-8").replace("\n# search: ", "\nsearch: "))
    assert config.search.provider is not None


def test_a_plain_token_is_refused_and_not_repeated(tmp_path: Path) -> None:
    (problem,) = load_problems(
        tmp_path, with_tenants("- id: acme", "  tokens:", "    - {id: a, token: hush, sha256: " + HASH + "}")
    )
    assert problem.endswith("unknown key 'token'; do not write a token here; write its SHA-256: sha256")
    (problem,) = load_problems(tmp_path, with_tenants("- id: acme", "  tokens:", "    - {id: a, sha256: my-plain-token}"))
    assert "must be 64 hexadecimal digits" in problem
    assert "my-plain-token" not in problem


@pytest.mark.parametrize("suffix", ["  -", " *token.txt"])
def test_a_whole_line_of_shasum_is_refused_with_what_to_remove(tmp_path: Path, suffix: str) -> None:
    (problem,) = load_problems(
        tmp_path, with_tenants("- id: acme", "  tokens:", "    - id: a", f"      sha256: {HASH}{suffix}", "      admin: true")
    )
    assert problem == (
        "gateway.yaml:13: tenants[0].tokens[0].sha256: must be only the 64 hexadecimal digits; "
        "remove what shasum prints after them"
    )


def test_two_tenants_cannot_share_a_token_in_another_case(tmp_path: Path) -> None:
    assert load_problems(
        tmp_path,
        with_tenants(
            "- id: acme",
            "  tokens: [{id: a, sha256: " + HASH + "}]",
            "- id: other",
            "  tokens: [{id: b, sha256: " + HASH.upper() + "}]",
        ),
    ) == ["gateway.yaml:13: tenants[1].tokens[0].sha256: this is also the token 'a' of tenant 'acme'; each needs its own"]


def test_ids_are_unique(tmp_path: Path) -> None:
    backend = "    - {provider: openai}\n"
    text = VALID.replace("models:\n  -", backend + "models:\n  - {name: llama-4-scout, context_window: 1}\n  -")
    text += "tenants:\n  - {id: acme}\n  - {id: acme}\n"
    assert [problem.partition(": ")[2] for problem in load_problems(tmp_path, text)] == [
        "llm.backends[1].name: 'openai' occurs a second time; choose another name",
        "models[1].name: 'llama-4-scout' occurs a second time; choose another name",
        "tenants[1].id: 'acme' occurs a second time; choose another id",
    ]


@pytest.mark.parametrize("name", ["agent/researcher", "agent/"])
def test_a_model_must_not_have_the_name_of_an_agent(tmp_path: Path, name: str) -> None:
    (problem,) = load_problems(tmp_path, VALID.replace("models:\n  -", f"models:\n  - {{name: {name}, context_window: 1}}\n  -"))
    assert "models[0].name: must not begin with agent/: such a name is that of an agent; write another name" in problem
    assert "model_names" in problem


@pytest.mark.parametrize("name", ["agent", "agents/small", "my/agent/small"])
def test_a_model_may_have_a_name_that_is_similar_to_an_agents(tmp_path: Path, name: str) -> None:
    text = VALID.replace("models:\n  -", f"models:\n  - {{name: {name}, context_window: 1}}\n  -")
    assert load(tmp_path, text).model(name).name == name


@pytest.mark.parametrize("name", ["Acme", "-acme", "a#b", "a" * 64, "acme\n", "ü"])
def test_a_malformed_tenant_id_is_refused(tmp_path: Path, name: str) -> None:
    (problem,) = load_problems(tmp_path, VALID + f"tenants:\n  - id: {name!r}\n".replace("'", '"'))
    assert problem.startswith("gateway.yaml:10: tenants[0].id: must be 1 to 63 characters of a-z, 0-9 and -")


@pytest.mark.parametrize(
    ("models", "problem", "advice"),
    [
        ("'*', lama-4-scout", "[1]: 'lama-4-scout' is not a model", "did you mean 'llama-4-scout'?"),
        ("agent/researcher", "[0]: 'agent/researcher' is an agent; ", "write the name of the agent's model instead"),
    ],
)
def test_an_allow_list_names_models_that_exist_and_no_agents(tmp_path: Path, models: str, problem: str, advice: str) -> None:
    token = "    - {id: a, sha256: " + HASH + f", allowed_models: [{models}]" + "}"
    (shown,) = load_problems(tmp_path, with_tenants("- id: acme", "  tokens:", token))
    assert f"allowed_models{problem}" in shown
    assert shown.endswith(advice)


def test_the_limits_of_a_tenant_are_optional(tmp_path: Path) -> None:
    with_limits = with_tenants("- id: acme", "  limits: {monthly_budget_usd: 12.5, tokens_per_minute: 1000}", "- id: other")
    acme, other = load(tmp_path, with_limits).tenants
    assert acme.limits.ceilings == {"monthly_budget_usd": Decimal("12.5"), "tokens_per_minute": 1000}
    assert other.limits.ceilings == {}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("{monthly_budget_usd: -1}", "limits.monthly_budget_usd: must be greater than or equal to 0"),
        ("{monthly_budget_usd: lots}", "limits.monthly_budget_usd: must be a number"),
        ("{tokens_per_minute: 0}", "limits.tokens_per_minute: must be greater than 0"),
        ("{tokens_per_minute: 1.5}", "limits.tokens_per_minute: must be a whole number"),
        ("{rag_top_k: 5}", "limits: unknown key 'rag_top_k'; known: monthly_budget_usd, tokens_per_minute, turns, "),
        ("{budget_usd: 5}", "limits: unknown key 'budget_usd'; did you mean 'monthly_budget_usd'?"),
        ("5", "limits: must be a mapping of keys to values"),
    ],
)
def test_a_wrong_limit_of_a_tenant_is_reported_with_its_line(tmp_path: Path, limits: str, message: str) -> None:
    (problem,) = load_problems(tmp_path, with_tenants("- id: acme", f"  limits: {limits}"))
    assert problem.startswith(f"gateway.yaml:11: tenants[0].{message}")


def test_a_limit_beside_those_of_requests_is_told_its_place(tmp_path: Path) -> None:
    (problem,) = load_problems(tmp_path, VALID + "limits: {monthly_budget_usd: 5}\n")
    assert problem.endswith("unknown key 'monthly_budget_usd'; write it under limits of a tenant, or under defaults")


def test_a_default_of_a_tenant_above_its_limit_is_a_mistake(tmp_path: Path) -> None:
    lines = ["- id: acme", "  limits: {monthly_budget_usd: 20, tokens_per_minute: 1000}"]
    load(tmp_path, with_tenants(*lines, "  defaults: {monthly_budget_usd: 20, tokens_per_minute: null}"))
    (problem,) = load_problems(tmp_path, with_tenants(*lines, "  defaults:", "    monthly_budget_usd: 20.01"))
    assert problem == (
        "gateway.yaml:13: tenants[0].defaults.monthly_budget_usd: 20.01 is above the tenant's limit of 20; write at most 20, or "
        "raise limits.monthly_budget_usd"
    )


def test_an_absent_or_empty_file_is_reported(tmp_path: Path) -> None:
    for path, shown in ((tmp_path / "absent.yaml", "absent.yaml"), (tmp_path.parent / "x.yaml", f"{tmp_path.parent}/x.yaml")):
        with pytest.raises(ConfigError) as caught:
            load_gateway_config(path)
        assert str(caught.value) == f"{shown}: there is no such file; name the operator's file in SPASS_CONFIG"
    assert load_problems(tmp_path, "") == ["gateway.yaml: must be a mapping of keys to values"]


TENANTS = """\
defaults:
  system_prompt: Be kind.
  monthly_budget_usd: 5
  compact_keep_last_n: 20
  tokens_per_minute: null
tenants:
  - id: acme
    defaults: {rag_top_k: 3, memory: x, tools_enabled_default: [calculator], tokens_per_minute: 10}
  - id: other
"""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://gpu.internal:8000/v1", True),
        ("https://gpu.internal/v1", False),
        ("http://localhost:8000", False),
        ("http://127.0.0.1:8000", False),
    ],
)
def test_a_key_over_plain_http_gets_a_warning(tmp_path: Path, url: str, expected: bool) -> None:
    text = VALID.replace("provider: openai", f"provider: openai\n      base_url: {url}")
    warnings = load(tmp_path, text).warnings
    assert [*map(str, warnings)] == ["gateway.yaml:4: openai's key goes over the network in the clear; write https"] * expected


WITH_REGION = "write https://bedrock-runtime.<region>.amazonaws.com"
MODELS = """\
models:
  - {name: small, context_window: 9, usd_per_mtok_in: 1}
  - {name: free, context_window: 9, usd_per_mtok_in: 0, usd_per_mtok_out: 0}
  - {name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256, usd_per_mtok_in: 0}
"""


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (
            "provider: bedrock",
            "bedrock serves no model: no name belongs to bedrock; list its models under model_names or supported_models",
        ),
        ("provider: bedrock, supported_models: [small]", None),
        ("provider: bedrock, model_names: {small: its-own}", None),
        ("provider: ollama", None),
        ("provider: anthropic", None),
        ("provider: embedded", None),
        (
            "provider: bedrock, supported_models: [small], base_url: 'https://proxy.example'",
            f"bedrock's base_url names no region, so its calls are signed for that of the deployment; {WITH_REGION}",
        ),
        ("provider: bedrock, supported_models: [small], base_url: 'https://proxy.example', api_key_env: KEY", None),
        ("provider: bedrock, supported_models: [small], base_url: 'https://bedrock-runtime.eu-west-1.amazonaws.com'", None),
    ],
)
def test_a_backend_that_cannot_work_gets_a_warning(tmp_path: Path, backend: str, expected: str | None) -> None:
    warnings = load(tmp_path, f"llm:\n  backends:\n    - {{{backend}}}\n{MODELS}").warnings
    assert [*map(str, warnings)] == ([f"gateway.yaml:3: {expected}"] if expected else [])


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("", False),
        ("defaults: {monthly_budget_usd: 5}\n", True),
        ("tenants: [{id: acme, defaults: {monthly_budget_usd: 0}}]\n", True),
        ("tenants: [{id: acme, limits: {monthly_budget_usd: 5}}]\n", True),
        ("tenants: [{id: acme, defaults: {tokens_per_minute: 9}}]\n", False),
    ],
)
def test_a_model_without_prices_gets_a_warning_if_there_is_a_budget(tmp_path: Path, budget: str, expected: bool) -> None:
    warnings = load(tmp_path, MODELS + budget).warnings
    message = "small has no price. Its calls count for no budget, unless its provider reports their cost"
    assert [*map(str, warnings)] == [f"gateway.yaml:2: {message}"] * expected


def test_unknown_tools_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = TENANTS.replace("[calculator]", "[calculater]") + "    defaults: {tools_enabled_default: [rag_query, nope]}\n"
    path = tmp_path / "gateway.yaml"
    path.write_text(VALID + text)
    with pytest.raises(ConfigError) as caught:
        load_gateway_config(path, ["calculator", "rag_query"])
    where = "tenants[{}].defaults.tools_enabled_default[{}]"
    assert [str(problem) for problem in caught.value.problems] == [
        f"gateway.yaml:16: {where.format(0, 0)}: 'calculater' is not a tool of this gateway; did you mean 'calculator'?",
        f"gateway.yaml:18: {where.format(1, 1)}: 'nope' is not a tool of this gateway; known: calculator, rag_query",
    ]


def test_warnings_are_not_a_key_of_the_file(tmp_path: Path) -> None:
    (problem,) = load_problems(tmp_path, VALID + "warnings: [x]\n")
    assert "unknown key 'warnings'" in problem
    assert "warnings" not in load(tmp_path, VALID + TENANTS).model_dump()
