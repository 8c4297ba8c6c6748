"""The text that `make run` prints when it serves."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from local.home import ROOT, Home
from local.models import TOKENS, ModelChoice
from spass.core.code_calls import Sandbox
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_problem import display_path

_EXAMPLE: Final = "llama-4-scout"
_DIRECTORS_MODEL: Final = "ollama/qwen2.5-coder:7b-instruct"
_MAX_NAMES: Final = 8


def banner(
    url: str,
    file: Path,
    config: GatewayConfig,
    choice: ModelChoice,
    home: Home,
    bucket: str,
    notes: Sequence[str],
    sandbox: Sandbox,
) -> str:
    """Return the gateway's address, its tenants, the backend of each model, where code runs, and requests to try. Lines that
    begin with four blanks can be pasted into any shell: in zsh, a comment behind a command would be words of it.

    ``config`` is the operator's, from ``file``, and ``bucket`` is the URL of the emulated bucket.
    """
    lines = [
        "",
        f"  Spass serves on {url}    (docs: {url}/docs)",
        f"  Chat in a browser: {url}/ui    (with a token below, and any user id)",
        "",
        *_tenants(file, config),
        "",
        *_models(config, choice),
        f"  code that models write: {_code(sandbox)}",
        f"  configuration: {file}",
        f"  state: {home.path} (kept over a restart)",
        *(f"  note: {note}" for note in notes),
        "",
        "  Try:",
        *_chat(url, choice),
        "  Put the command spass on the PATH, and ask:",
        f'    export PATH={shlex.quote(f"{ROOT}/.venv/bin")}:"$PATH"',
        f'    SPASS_URL={url} spass ask "What is 1791 * 17?" --tools calculator',
        *_director(url, choice),
        *_upload(home, bucket),
        "  The whole walk, on a temporary gateway, in another terminal:",
        "    make demo",
        "",
        "  Ctrl-C stops it.",
        "",
    ]
    return "\n".join(lines)


def _chat(url: str, choice: ModelChoice) -> list[str]:
    """Return a chat request with the model of our own examples, or the catalogue's first. Return no lines without a model."""
    model = _EXAMPLE if _EXAMPLE in choice.by_model else next(iter(choice.by_model), None)
    if model is None:
        return []
    return [
        f"    curl -sS -w '\\n' {url}/v1/chat/completions -H 'Authorization: Bearer demo-token' \\",
        f'      -H \'Content-Type: application/json\' -d \'{{"model": "{model}", "messages": [',
        '        {"role": "user", "content": "My favourite sport is tennis. Which sport is my favourite?"}]}\'',
    ]


def _director(url: str, choice: ModelChoice) -> list[str]:
    """Return a chat with a director about the workspace of the tenant demo. Return no lines without the directors' model."""
    if _DIRECTORS_MODEL not in choice.by_model:
        return []
    return [
        "  Ask about a workspace (docs/directors.md):",
        f"    curl -sSN {url}/c1/agents/dir-code/chat -H 'Authorization: Bearer demo-token' -H 'SPASS-User-Id: ada' \\",
        '      -H \'Content-Type: application/json\' -d \'{"message_id": "m1", "messages": [',
        '        {"role": "user", "content": "What files are in src/?"}]}\'',
    ]


def _upload(home: Home, bucket: str) -> list[str]:
    """Return a command that uploads a file to our own emulator. The environment and ``~/.aws/credentials`` would win over
    the keys in ``AWS_CONFIG_FILE``, so the command has neither. Return no lines for another emulator."""
    if not home.aws_config.exists():
        return []
    file = shlex.quote(str(home.aws_config))
    return [
        "  Upload a file, which becomes documents of an index (without the AWS CLI: docs/walk.md):",
        f'    env -i PATH="$PATH" AWS_CONFIG_FILE={file} AWS_SHARED_CREDENTIALS_FILE={file} \\',
        f"      aws s3 cp notes.md s3://{bucket}/uploads/demo/my-index/",
    ]


def _code(sandbox: Sandbox) -> str:
    """Return the name of the sandbox, or the reason why no code can run."""
    return f"runs in the sandbox {sandbox.name}" if sandbox.unavailable is None else f"does not run; {sandbox.unavailable}"


def _tenants(file: Path, config: GatewayConfig) -> list[str]:
    lines = [
        f"  tenant  {tenant:<5} {'tokens' if len(tokens) > 1 else 'token':<6}  {', '.join(sorted(tokens, reverse=True))}"
        for tenant, tokens in TOKENS.items()
    ]
    if operators := [tenant.id for tenant in config.tenants if tenant.id not in TOKENS or tenant.tokens]:
        lines.append(f"  of {display_path(file)}, with tokens that only you know: {_first_names(operators)}")
    return lines


def _models(config: GatewayConfig, choice: ModelChoice) -> list[str]:
    lines = _model_line("answer", "for", config, choice, choice.by_model)
    if choice.needs_standin:
        lines += [
            "  (the stand-in is a small offline program, not a language model; put a provider's key into .env, or run Ollama;",
            "   costs are shown by the catalogue's prices, and nothing is charged)",
        ]
        if choice.stand_in_problem:
            lines.append(f"  {choice.stand_in_problem}")
        if choice.ollama_models:
            name = choice.ollama_models[0]
            lines.append(
                f"  Ollama has {_first_names(choice.ollama_models)}: SPASS_OLLAMA_MODEL={name} lets it take the stand-in's place"
            )
    lines += _model_line("embed", "with", config, choice, choice.embeddings)
    for model, variables in choice.unanswered.items():
        remedy = f"set {' or '.join(variables)}" if variables else "its backends are not used here"
        lines.append(f"  no backend answers for {model}: {remedy}")
    if choice.unused:
        reasons = _names_by_group((reason, backend) for backend, reason in choice.unused.items())
        groups = [f"{_first_names(backends)} ({reason})" for reason, backends in reasons.items()]
        lines.append(f"  unused: {_first_names(groups)}")
    return lines


def _model_line(verb: str, preposition: str, config: GatewayConfig, choice: ModelChoice, models: Iterable[str]) -> list[str]:
    """Return a line for all models that the same backends serve. It says what decides between several backends, and which model
    answers in place of another one."""
    lines = []
    pairs = (((choice.serving(model), choice.substitutes.get(model)), model) for model in models)
    for (backends, substitute), served in _names_by_group(pairs).items():
        several = len(backends) > 1
        subject = f"{_first_names(backends)} ({config.llm.strategy}) {verb}" if several else f"{backends[0]} {verb}s"
        with_model = f" with {substitute} (SPASS_OLLAMA_MODEL)" if substitute else ""
        lines.append(f"  {subject} {preposition} {_first_names(served)}{with_model}")
    return lines


_Group = TypeVar("_Group")


def _names_by_group(pairs: Iterable[tuple[_Group, str]]) -> dict[_Group, list[str]]:
    groups: dict[_Group, list[str]] = {}
    for group, name in pairs:
        groups.setdefault(group, []).append(name)
    return groups


def _first_names(names: Sequence[str]) -> str:
    """Return at most the first eight names, separated by commas, and the number of the others."""
    more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    return ", ".join([*names[:_MAX_NAMES], *more])
