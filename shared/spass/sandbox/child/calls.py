"""The functions that a cell finds in its namespace."""

from __future__ import annotations

from spass.sandbox.child.connection import decode, encode
from spass.sandbox.child.effects import LLMError, ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spass.sandbox.child.connection import Json
    from spass.sandbox.child.effects import Effects

MAX_BATCH = 64
MAX_FINAL = 10**6
"""Characters of an answer."""

# What the gateway accepts as arguments of a tool.
_MAX_DEPTH = 64
_MAX_KEYS = 1000
_MAX_ITEMS = 10_000
_MAX_VALUES = 50_000
_MAX_INTEGER = 10**64


def model_functions(effects: Effects) -> dict[str, Callable[..., Any]]:
    """Return the functions that call a model."""

    def llm_query(prompt: str) -> str:
        """Ask the model and return its text. Raise LLMError if the call fails."""
        check(prompt)
        (reply,) = effects.perform([{"query": prompt}], LLMError)
        if reply.get("error"):
            raise LLMError(reply["error"]["message"], reply["error"]["code"])
        text: str = reply["value"]
        return text

    def llm_batch(prompts: list[str]) -> list[str]:
        """Ask the model all prompts side by side, at most 64. Return the texts in the same order; one that failed is
        "[error: <code>]"."""
        if not isinstance(prompts, list | tuple):
            raise LLMError(f"llm_batch takes a list of prompts, not {_type_name(prompts)}.", "invalid_request")
        prompts = list(prompts)
        if len(prompts) > MAX_BATCH:
            message = f"llm_batch takes at most {MAX_BATCH} prompts, not {len(prompts)}. Call it several times."
            raise LLMError(message, "invalid_request")
        for prompt in prompts:
            check(prompt)
        if not prompts:
            return []
        replies = effects.perform([{"query": prompt} for prompt in prompts], LLMError)
        return [f"[error: {reply['error']['code']}]" if reply.get("error") else reply["value"] for reply in replies]

    def check(prompt: object) -> None:
        if not isinstance(prompt, str):
            raise LLMError(f"A prompt is a string, not {_type_name(prompt)}.", "invalid_request")
        if not str.strip(prompt):
            raise LLMError("The prompt is empty.", "invalid_request")

    return {"llm_query": llm_query, "llm_batch": llm_batch}


def tool_function(effects: Effects, name: str) -> Callable[..., Json]:
    """Return the function that calls the tool ``name``."""

    def call(*positional: object, **arguments: object) -> Json:
        if positional:
            raise ToolError(f"{name} takes keyword arguments only: {name}(argument=value).", "invalid_arguments")
        try:
            plain = decode(encode(arguments))
            _check_size(plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"The arguments of {name} cannot be sent: {error}.", "invalid_arguments") from None
        (reply,) = effects.perform([{"tool": name, "arguments": plain}], ToolError)
        if reply.get("error"):
            raise ToolError(reply["error"]["message"], reply["error"]["code"])
        value: Json = reply["value"]
        return value

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Call the tool {name} with keyword arguments. Raise ToolError if it fails."
    return call


def answer_text(value: object) -> str:
    """Return the answer that ``FINAL(value)`` gives: a string as it is, otherwise JSON, otherwise ``str``. Raise ValueError if
    the answer is too long."""
    if isinstance(value, str):
        text = str.__str__(value)
    else:
        try:
            text = encode(value)
        except (TypeError, ValueError, RecursionError):
            text = str.__str__(str(value))
    if len(text) > MAX_FINAL:
        raise ValueError(f"the answer has {len(text)} characters; at most {MAX_FINAL} are possible")
    return text


def _check_size(arguments: dict[str, Json]) -> None:
    """Refuse what the gateway does not accept as arguments."""
    level: list[Any] = [arguments]
    values = 0
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for container in level:
            if len(container) > (_MAX_KEYS if isinstance(container, dict) else _MAX_ITEMS):
                raise ValueError(f"an object may have {_MAX_KEYS} keys and a list {_MAX_ITEMS} items")
            values += len(container)
            for value in container.values() if isinstance(container, dict) else container:
                if isinstance(value, dict | list):
                    inner.append(value)
                elif isinstance(value, int) and abs(value) >= _MAX_INTEGER:
                    raise ValueError("a number has too many digits")
        level = inner
    if values > _MAX_VALUES:
        raise ValueError(f"they have {values} values; at most {_MAX_VALUES} are possible")
    if level:
        raise ValueError(f"they are nested deeper than {_MAX_DEPTH} levels")


def _type_name(value: object) -> str:
    return type(value).__name__
