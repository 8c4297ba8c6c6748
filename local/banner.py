"""What `make run` says once it serves."""

from collections.abc import Sequence

from local.home import Home
from local.models import Choice


def banner(url: str, choice: Choice, home: Home, notes: Sequence[str]) -> str:
    """Where the gateway is, who answers, and what to try first."""
    lines = [
        "",
        f"  Spass serves on {url}    (docs: {url}/docs)",
        "",
        "  tenant  demo   tokens  demo-token, demo-admin-token",
        "  tenant  demo-2 token   demo-2-token",
        "  tenant  other  token   other-token",
        "",
        *_models(choice),
        "  embeddings: all-MiniLM-L6-v2, in this process",
        f"  state: {home.path} (kept over a restart)",
        *(f"  note: {note}" for note in notes),
        "",
        "  Try:",
        f"    curl -s {url}/v1/chat/completions -H 'Authorization: Bearer demo-token' \\",
        '      -H \'Content-Type: application/json\' -d \'{"model": "llama-4-scout", "messages": [',
        '        {"role": "user", "content": "Mein Sport ist Tennis. Was ist mein Sport?"}]}\'',
        "    make demo      (in another terminal: the whole walk)",
        "",
        "  Ctrl-C stops it.",
        "",
    ]
    return "\n".join(lines)


def _models(choice: Choice) -> list[str]:
    by_backend: dict[str, list[str]] = {}
    for model, backend in choice.by_model.items():
        by_backend.setdefault(backend, []).append(model)
    lines = [f"  {backend} answers for {', '.join(models)}" for backend, models in by_backend.items()]
    if choice.needs_standin:
        lines += [
            "  (the stand-in is a small offline program, no language model; put a provider's key into .env, or run Ollama;",
            "   costs are shown by the catalogue's prices, and nothing is charged)",
        ]
    return lines
