"""Stand-ins for modules that Aider imports and an edit does not use: networks, devices, compiled parsers and telemetry."""

import sys
from types import ModuleType


class _Analytics:
    """Aider reports its use to its makers. This reports nothing."""

    def event(self, event_name: str, **properties: object) -> None:
        pass


class _Litellm(ModuleType):
    """Aider calls providers with it. Here it only has the names of the exceptions that Aider looks for; nothing raises them."""

    class _Logging:
        def _disable_debugging(self) -> None:
            pass

    _logging = _Logging()

    def __getattr__(self, name: str) -> type[Exception]:
        if name.startswith("_"):
            raise AttributeError(name)
        exception = type(name, (Exception,), {})
        setattr(self, name, exception)
        return exception


def install() -> None:
    """Let ``import`` find the stand-ins. Call this before Aider is imported."""
    # Aider measures images and reads them from the clipboard. All files of an edit are text.
    pillow = ModuleType("PIL")
    vars(pillow).update(Image=pillow, ImageGrab=pillow)
    # Aider's repo map and linter parse files. Both are off.
    languages = _module("languages", USING_TSL_PACK=True, Query=object, get_language=_return_none, get_parser=_return_none)
    sys.modules.update(
        {
            "PIL": pillow,
            "PIL.Image": pillow,
            "PIL.ImageGrab": pillow,
            "aider.analytics": _module("analytics", Analytics=_Analytics),
            "aider.voice": _module("voice"),  # it needs a sound device
            "grep_ast.tsl": languages,
            "litellm": _Litellm("litellm"),
            "psutil": _module("psutil"),  # Aider looks for the shell that started it before it runs a command
            "requests": _module("requests"),  # Aider fetches price lists
            "tree_sitter": languages,
            # Aider reads the settings of hundreds of models, which takes longer than all other imports.
            "yaml": _module("yaml", safe_load=lambda _: []),
        }
    )


def _module(name: str, **members: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    return module


def _return_none(name: str) -> None:
    pass
