"""Read the `.env` file, check the provider keys, and warn about lines of the file that have no effect."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dotenv import load_dotenv
from dotenv.parser import Binding, parse_stream

from local.home import ROOT, LocalError
from spass.core.text_checks import did_you_mean
from spass.models.backends import all_key_variables
from spass.tenancy.config import GatewayConfig

DOTENV: Final = ROOT / ".env"
_KEY: Final = re.compile(r"[!-~]+")
_KEY_NAME: Final = re.compile(r"API_?KEY$", re.IGNORECASE)


def read_dotenv(file: Path) -> None:
    """Set the variables of ``file`` that the environment does not have. Do nothing without a file.

    Raises:
        LocalError: the file is not UTF-8.
    """
    try:
        load_dotenv(file)
    except UnicodeDecodeError:
        raise LocalError(f"{file} is not UTF-8. Save it as UTF-8.") from None


def check_keys(config: GatewayConfig) -> None:
    """Check the keys that the backends and the search provider of ``config`` would get, without showing one.

    Raises:
        LocalError: a key contains a character that a header must not contain; the message names its variable.
    """
    for variable in all_key_variables(config):
        value = os.environ.get(variable)
        if value and not _KEY.fullmatch(value):
            raise LocalError(
                f"{variable} is not a key: it contains a blank or a character outside ASCII. "
                f"Write the provider's key, or remove {variable} from .env or the environment."
            )


def dotenv_notes(file: Path, config: GatewayConfig) -> list[str]:
    """Return warnings about lines of ``file`` that have no effect. They do not quote a line, which may be a pasted key."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8") as text:
        return [note for binding in parse_stream(text) for note in _notes(file.name, binding, all_key_variables(config))]


def _notes(file: str, binding: Binding, known: list[str]) -> Iterator[str]:
    text = binding.original.string
    line = binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
    if binding.error or (binding.key is not None and binding.value is None):
        yield f"{file}:{line}: this line has no effect; write NAME=value"
    elif binding.key is not None and _KEY_NAME.search(binding.key) and binding.key not in known:
        yield f"{file}:{line}: no backend of gateway.yaml uses {binding.key}{did_you_mean(binding.key.upper(), known)}"
