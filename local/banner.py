"""What `make run` says once it serves."""

from collections.abc import Mapping, Sequence
from typing import Final

from local.home import Home
from local.models import TOKENS, Choice
from spass.tenancy.config import GatewayConfig

_EXAMPLE: Final = "llama-4-scout"


def banner(url: str, config: GatewayConfig, choice: Choice, home: Home, bucket: str, notes: Sequence[str]) -> str:
    """Where the gateway is, for whom, who answers, and what to try first. ``config`` is the operator's, ``bucket`` the URL of the
    emulated bucket.
    """
    lines = [
        "",
        f"  Spass serves on {url}    (docs: {url}/docs)",
        "",
        *_tenants(config),
        "",
        *_models(choice),
        f"  state: {home.path} (kept over a restart)",
        *(f"  note: {note}" for note in notes),
        "",
        "  Try:",
        *_chat(url, choice),
        f"    curl -T notes.md {bucket}/uploads/demo/my-index/",
        "    make demo      (in another terminal: the whole walk, on a gateway of its own)",
        "",
        "  Ctrl-C stops it.",
        "",
    ]
    return "\n".join(lines)


def _chat(url: str, choice: Choice) -> list[str]:
    """A chat with the model of our own examples, else with the catalogue's first; there may be none."""
    model = _EXAMPLE if _EXAMPLE in choice.by_model else next(iter(choice.by_model), None)
    if model is None:
        return []
    return [
        f"    curl -s {url}/v1/chat/completions -H 'Authorization: Bearer demo-token' \\",
        f'      -H \'Content-Type: application/json\' -d \'{{"model": "{model}", "messages": [',
        '        {"role": "user", "content": "Mein Sport ist Tennis. Was ist mein Sport?"}]}\'',
    ]


def _tenants(config: GatewayConfig) -> list[str]:
    lines = [
        f"  tenant  {tenant:<5} {'tokens' if len(tokens) > 1 else 'token':<6}  {', '.join(sorted(tokens, reverse=True))}"
        for tenant, tokens in TOKENS.items()
    ]
    if theirs := [tenant.id for tenant in config.tenants if tenant.id not in TOKENS or tenant.tokens]:
        lines.append(f"  of gateway.yaml, with tokens that only you know: {', '.join(theirs)}")
    return lines


def _models(choice: Choice) -> list[str]:
    lines = [f"  {backend} answers for {models}" for backend, models in _by_backend(choice.by_model)]
    if choice.needs_standin:
        lines += [
            "  (the stand-in is a small offline program, no language model; put a provider's key into .env, or run Ollama;",
            "   costs are shown by the catalogue's prices, and nothing is charged)",
        ]
    lines += [f"  {backend} embeds with {models}" for backend, models in _by_backend(choice.embeddings)]
    for model, variables in choice.unanswered.items():
        remedy = f"set {' or '.join(variables)}" if variables else "no backend for it is used here"
        lines.append(f"  nobody answers for {model}: {remedy}")
    return lines


def _by_backend(by_model: Mapping[str, str]) -> list[tuple[str, str]]:
    """Each backend and its models, to be read."""
    found: dict[str, list[str]] = {}
    for model, backend in by_model.items():
        found.setdefault(backend, []).append(model)
    return [(backend, ", ".join(models)) for backend, models in found.items()]
