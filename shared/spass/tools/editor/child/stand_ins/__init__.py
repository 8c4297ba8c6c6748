"""Stand-ins for modules that Aider imports and an edit does not use: networks, devices, compiled parsers and telemetry."""

import sys
from importlib import import_module
from typing import Final

_REPLACED: Final = {
    "PIL": "pillow",
    "PIL.Image": "pillow",
    "PIL.ImageGrab": "pillow",
    "aider.analytics": "analytics",
    "aider.voice": "voice",
    "grep_ast.tsl": "languages",
    "litellm": "litellm",
    "psutil": "processes",
    "requests": "requests",
    "tree_sitter": "languages",
    "yaml": "yaml",
}


def install() -> None:
    """Let ``import`` find the stand-ins. Call this before Aider is imported."""
    for name, stand_in in _REPLACED.items():
        sys.modules[name] = import_module(f"{__name__}.{stand_in}")
