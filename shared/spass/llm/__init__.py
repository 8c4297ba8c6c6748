"""Models: the router, its backends and their providers. The names below call models from code beside the gateway:

    from spass.llm import complete
    reply = await complete("grok-4.1", [{"role": "user", "content": "Hello!"}])

Most are in ``spass.calls``, which counts usage; ``driver``, which runs an agent kind, is in ``spass.agents``. This package may
not import them, so they are found at their first use.
"""

from importlib import import_module
from typing import Final

_PLACES: Final = {
    **dict.fromkeys(("complete", "embed", "usage", "reset_usage", "aclose"), "spass.calls.process_router"),
    "driver": "spass.agents.in_process",
    "NoBackendAvailable": "spass.core.errors",
    "BackendError": "spass.llm.errors",
}


def __getattr__(name: str) -> object:
    if name in _PLACES:
        try:
            return getattr(import_module(_PLACES[name]), name)
        except ModuleNotFoundError as error:  # `pip install .` installs the client only
            advice = "Install them with pip install -r requirements/local.txt, from a checkout of Spass."
            message = f"spass.llm needs the packages of the gateway, and {error.name} is missing. {advice}"
            raise ModuleNotFoundError(message, name=error.name) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
