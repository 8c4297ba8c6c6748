"""For ``litellm``: Aider calls providers with it. Here it only has the names of the exceptions that Aider looks for."""


class _Logging:
    def _disable_debugging(self) -> None:
        """Do nothing: nothing is logged."""


_logging = _Logging()


def __getattr__(name: str) -> type[Exception]:
    """Return an exception that nothing raises."""
    if name.startswith("_"):
        raise AttributeError(name)
    globals()[name] = type(name, (Exception,), {})
    exception: type[Exception] = globals()[name]
    return exception
