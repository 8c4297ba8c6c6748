"""Redact the secrets of this gateway: its tenants' tokens, its provider keys, its AWS credentials, and credential formats."""

import os
from collections.abc import Callable, Collection, Iterable

from spass.core.errors import SpassError
from spass.redaction.detector import SecretSet
from spass.redaction.stream import redact_secrets
from spass.redaction.text import CREDENTIAL_VARIABLES, redact, redact_provider_text


class Redactor:
    """Redact the text that leaves the gateway. A process has one instance.

    ``token_sha256`` holds digests of tokens in hexadecimal, ``variables`` the environment variables with provider keys, and
    ``keys`` returns the provider keys in use.
    """

    def __init__(self, token_sha256: Iterable[str], variables: Iterable[str], keys: Callable[[], Collection[str]]) -> None:
        self._token_sha256 = tuple(token_sha256)
        self._variables = tuple(dict.fromkeys((*CREDENTIAL_VARIABLES, *variables)))
        self._keys = keys
        self._values: tuple[str, ...] = ()
        self._secrets = SecretSet((), self._token_sha256)

    def secrets(self) -> SecretSet:
        """Return the current secrets. Provider keys and AWS credentials may change while the process runs."""
        values = (*self._keys(), *filter(None, map(os.environ.get, self._variables)))
        if values != self._values:
            self._secrets, self._values = SecretSet(values, self._token_sha256), values
        return self._secrets

    def redact_answer(self, text: str) -> str:
        return redact_secrets(self.secrets(), text)

    def redact(self, text: str) -> str:
        """Return the text of an error without secrets, URLs, paths and ARNs."""
        return redact(self.redact_answer(text))

    def redact_error(self, error: SpassError) -> SpassError:
        """Return the error of a model call without secrets, hosts, paths and ARNs in its message."""
        message = redact_provider_text(redact_secrets(self.secrets(), error.message), secrets=self._values)
        return type(error)(message, param=error.param, details=error.details, retry_after=error.retry_after)
