"""Call models and run agent kinds from code beside the gateway: a function, a script, a notebook.

    from spass.llm import complete
    reply = await complete("grok-4.1", [{"role": "user", "content": "Hello!"}])

The names are imported at their first use: a program that only imports this package starts at once.
"""


def __getattr__(name: str) -> object:
    try:
        match name:
            case "complete" | "embed" | "usage" | "reset_usage" | "aclose":
                from spass.llm import router

                return getattr(router, name)
            case "driver":
                from spass.llm.agent_driver import driver

                return driver
            case "NoBackendAvailable" | "BackendError":
                from spass.llm import errors

                return getattr(errors, name)
    except ModuleNotFoundError as error:  # `pip install .` installs the client only
        advice = "Install them with pip install -r requirements/local.txt, from a checkout of Spass."
        message = f"spass.llm needs the packages of the gateway, and {error.name} is missing. {advice}"
        raise ModuleNotFoundError(message, name=error.name) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
