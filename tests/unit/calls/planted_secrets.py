"""Build one invented secret of each kind. They are built at run time, so that a scanner does not report this file."""

import base64
import random
import string
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import pytest

_LETTERS: Final = string.ascii_letters + string.digits
_MAX_ERROR_CHARACTERS: Final = 400  # characters of an error's text that are passed on
_GENERATOR: Final = random.Random(4)

PROVIDER_KEY: Final = "a-key-of-the-7th-provider"
TOKEN: Final = "token-of-a-tenant"
SECRET_KEY: Final = "wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "PLANTEDKEY"


def _random_characters(count: int, alphabet: str = _LETTERS) -> str:
    """Return ``count`` characters, with letters and digits among them."""
    while True:
        characters = "".join(_GENERATOR.choices(alphabet, k=count))
        if count < 8 or (any(map(str.isdigit, characters)) and any(map(str.isalpha, characters))):
            return characters


def _random_hex(count: int) -> str:
    return _random_characters(count, "0123456789abcdef")


def _random_url64(count: int) -> str:
    return _random_characters(count, _LETTERS + "-_")


def _random_key_lines(count: int) -> str:
    return "\n".join(_random_characters(64, _LETTERS + "+/") for _ in range(count)) + "\n" + _random_characters(18) + "=="


_HEADER: Final = base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().rstrip("=")

BY_FORMAT: Final[Mapping[str, str]] = {
    "openai project": "sk-proj-" + _random_url64(120),
    "openai service account": "sk-svcacct-" + _random_url64(60),
    "openai legacy": "sk-" + _random_characters(20) + "T3BlbkFJ" + _random_characters(20),
    "anthropic": "sk-ant-api03-" + _random_url64(93) + "AA",
    "openrouter": "sk-or-v1-" + _random_hex(64),
    "deepseek": "sk-" + _random_hex(32),
    "xai": "xai-" + _random_characters(80),
    "groq": "gsk_" + _random_characters(52),
    "hugging face": "hf_" + _random_characters(34),
    "replicate": "r8_" + _random_characters(37),
    "perplexity": "pplx-" + _random_characters(48),
    "nvidia": "nvapi-" + _random_url64(64),
    "google api": "AIza" + _random_url64(34) + "x",
    "google oauth": "ya29." + _random_url64(60),
    "google client": "GOCSPX-" + _random_url64(28),
    "aws key id": "AKIA" + _random_characters(16, string.ascii_uppercase + "234567"),
    "aws temporary key id": "ASIA" + _random_characters(16, string.ascii_uppercase + "234567"),
    "aws session token": "IQoJb3JpZ2lu" + _random_characters(400, _LETTERS + "+/") + "==",
    "azure storage": "AccountKey=" + _random_characters(86, _LETTERS + "+/") + "==",
    "azure sas": "sig=" + _random_characters(43) + "%3D",
    "entra": _random_characters(3) + "8Q~" + _random_characters(34),
    "azure openai": _random_characters(52) + "JQQJ99" + _random_characters(26),
    "github": "ghp_" + _random_characters(36),
    "github oauth": "gho_" + _random_characters(36),
    "github app": "ghs_" + _random_characters(36),
    "github fine-grained": "github_pat_" + _random_characters(22) + "_" + _random_characters(59),
    "gitlab": "glpat-" + _random_characters(20),
    "slack bot": "xoxb-" + _random_hex(12) + "-" + _random_hex(12) + "-" + _random_characters(24),
    "slack webhook": "hooks.slack.com/services/T"
    + _random_characters(10)
    + "/B"
    + _random_characters(10)
    + "/"
    + _random_characters(24),
    "stripe": "sk_live_" + _random_characters(24),
    "stripe restricted": "rk_live_" + _random_characters(24),
    "twilio": "SK" + _random_hex(32),
    "sendgrid": "SG." + _random_url64(22) + "." + _random_url64(43),
    "npm": "npm_" + _random_characters(36),
    "pypi": "pypi-AgEIcHlwaS5vcmc" + _random_url64(100),
    "docker": "dckr_pat_" + _random_url64(27),
    "digitalocean": "dop_v1_" + _random_hex(64),
    "telegram": "123456789:AA" + _random_url64(32) + "x",
    "discord": "MTk4NjIyNDgzNDcxOTI1MjQ4" + "." + _random_url64(6) + "." + _random_url64(37) + "x",
    "discord webhook": "discord.com/api/webhooks/1234567890/" + _random_url64(68),
    "shopify": "shpat_" + _random_hex(32),
    "square": "sq0atp-" + _random_url64(22),
    "mailgun": "key-" + _random_hex(32),
    "mailchimp": _random_hex(32) + "-us12",
    "databricks": "dapi" + _random_hex(32),
    "vault": "hvs." + _random_url64(90),
    "age": "AGE-SECRET-KEY-1" + _random_characters(58, string.ascii_uppercase + string.digits),
    "linear": "lin_api_" + _random_characters(40),
    "new relic": "NRAK-" + _random_characters(27, string.ascii_uppercase + string.digits),
    "postman": "PMAK-" + _random_hex(24) + "-" + _random_hex(34),
    "grafana": "glsa_" + _random_characters(32) + "_" + _random_hex(8),
    "web token": _HEADER + "." + _random_url64(80) + "." + _random_url64(43),
    "long web token": _HEADER + "." + _random_url64(2500) + "." + _random_url64(342),
}
"""Secrets that are detected by their format."""

BY_VALUE: Final[Mapping[str, str]] = {
    "provider key": PROVIDER_KEY,
    "gateway token": TOKEN,
    "process secret key": SECRET_KEY,
    "process session token": "FwoG-" + _random_characters(900, _LETTERS + "+/") + "=",
    "process key id": "process-key-id-1",
}
"""Secrets that are detected because this process knows them."""

BY_CONTEXT: Final[Mapping[str, tuple[str, str, str]]] = {
    "aws secret key": ("aws_secret_access_key = ", _random_characters(40, _LETTERS + "+/"), "\n"),
    "aws secret key in json": ('"SecretAccessKey": "', _random_characters(40, _LETTERS + "+/"), '"'),
    "aws key pair in a table": (
        "Access key ID,Secret access key\nAKIA" + "Q" * 16 + ",",
        _random_characters(40, _LETTERS + "+/"),
        "\n",
    ),
    "bearer token": ("Authorization: Bearer ", _random_hex(32), "\n"),
    "bearer token in json": ('"authorization": "bearer ', _random_characters(24) + "==", '"'),
    "login of a url": ("postgres://ada:", _random_characters(12), "@db/x"),
    "private key": ("-----BEGIN PRIVATE KEY-----\n", _random_key_lines(12), "\n-----END PRIVATE KEY-----"),
    "ssh key": ("-----BEGIN OPENSSH PRIVATE KEY-----\n", _random_key_lines(5), "\n-----END OPENSSH PRIVATE KEY-----"),
    "rsa key": (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n",
        _random_key_lines(6),
        "\n-----END RSA PRIVATE KEY-----",
    ),
}
"""Secrets that are detected by the text around them: (before, secret, after)."""

SECRETS: Final[Mapping[str, str]] = {**BY_FORMAT, **BY_VALUE, **{name: "".join(parts) for name, parts in BY_CONTEXT.items()}}
"""A text with the secret, for every kind."""


def identifying_parts(kind: str) -> list[str]:
    """Return the parts of a secret that must not leak: its lines without their first four characters, which may be sent before
    they are known to be the start of a secret."""
    secret = BY_CONTEXT[kind][1] if kind in BY_CONTEXT else SECRETS[kind]
    return [line[4:20] for line in secret.splitlines() if len(line) >= 8]


def set_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the credentials of ``BY_VALUE`` the credentials of this process."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", BY_VALUE["process secret key"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", BY_VALUE["process session token"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", BY_VALUE["process key id"])


def leaked_kinds(out: str, secrets: Collection[str]) -> list[str]:
    """Return the kinds of ``secrets`` that ``out`` contains."""
    return [kind for kind in secrets if any(part in out for part in identifying_parts(kind))]


def text_with_secrets(batch: Mapping[str, str]) -> str:
    """Return a text with all secrets of ``batch``."""
    return "\n".join(batch.values())


def _batches() -> Iterator[dict[str, str]]:
    batch: dict[str, str] = {}
    for kind, secret in sorted(SECRETS.items(), key=lambda item: len(item[1])):
        if batch and sum(map(len, batch.values())) + len(secret) > _MAX_ERROR_CHARACTERS:
            yield batch
            batch = {}
        batch[kind] = secret
    yield batch


BATCHES: Final = list(_batches())
"""All secrets, in batches that fit into the text of an error."""
