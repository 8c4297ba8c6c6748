"""Build one invented secret of each kind. They are built at run time, so that a scanner does not report this file."""

import base64
import random
import string
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import pytest

_LETTERS: Final = string.ascii_letters + string.digits
_ROOM: Final = 400  # characters of an error's text that are passed on
_DICE: Final = random.Random(4)

PROVIDER_KEY: Final = "a-key-of-the-7th-provider"
TOKEN: Final = "token-of-a-tenant"
SECRET_KEY: Final = "wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "PLANTEDKEY"


def _some(count: int, alphabet: str = _LETTERS) -> str:
    """Return ``count`` characters, with letters and digits among them."""
    while True:
        made = "".join(_DICE.choices(alphabet, k=count))
        if count < 8 or (any(map(str.isdigit, made)) and any(map(str.isalpha, made))):
            return made


def _hex(count: int) -> str:
    return _some(count, "0123456789abcdef")


def _url64(count: int) -> str:
    return _some(count, _LETTERS + "-_")


def _key_lines(count: int) -> str:
    return "\n".join(_some(64, _LETTERS + "+/") for _ in range(count)) + "\n" + _some(18) + "=="


_HEADER: Final = base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().rstrip("=")

SHAPED: Final[Mapping[str, str]] = {
    "openai project": "sk-proj-" + _url64(120),
    "openai service account": "sk-svcacct-" + _url64(60),
    "openai legacy": "sk-" + _some(20) + "T3BlbkFJ" + _some(20),
    "anthropic": "sk-ant-api03-" + _url64(93) + "AA",
    "openrouter": "sk-or-v1-" + _hex(64),
    "deepseek": "sk-" + _hex(32),
    "xai": "xai-" + _some(80),
    "groq": "gsk_" + _some(52),
    "hugging face": "hf_" + _some(34),
    "replicate": "r8_" + _some(37),
    "perplexity": "pplx-" + _some(48),
    "nvidia": "nvapi-" + _url64(64),
    "google api": "AIza" + _url64(34) + "x",
    "google oauth": "ya29." + _url64(60),
    "google client": "GOCSPX-" + _url64(28),
    "aws key id": "AKIA" + _some(16, string.ascii_uppercase + "234567"),
    "aws temporary key id": "ASIA" + _some(16, string.ascii_uppercase + "234567"),
    "aws session token": "IQoJb3JpZ2lu" + _some(400, _LETTERS + "+/") + "==",
    "azure storage": "AccountKey=" + _some(86, _LETTERS + "+/") + "==",
    "azure sas": "sig=" + _some(43) + "%3D",
    "entra": _some(3) + "8Q~" + _some(34),
    "azure openai": _some(52) + "JQQJ99" + _some(26),
    "github": "ghp_" + _some(36),
    "github oauth": "gho_" + _some(36),
    "github app": "ghs_" + _some(36),
    "github fine-grained": "github_pat_" + _some(22) + "_" + _some(59),
    "gitlab": "glpat-" + _some(20),
    "slack bot": "xoxb-" + _hex(12) + "-" + _hex(12) + "-" + _some(24),
    "slack webhook": "hooks.slack.com/services/T" + _some(10) + "/B" + _some(10) + "/" + _some(24),
    "stripe": "sk_live_" + _some(24),
    "stripe restricted": "rk_live_" + _some(24),
    "twilio": "SK" + _hex(32),
    "sendgrid": "SG." + _url64(22) + "." + _url64(43),
    "npm": "npm_" + _some(36),
    "pypi": "pypi-AgEIcHlwaS5vcmc" + _url64(100),
    "docker": "dckr_pat_" + _url64(27),
    "digitalocean": "dop_v1_" + _hex(64),
    "telegram": "123456789:AA" + _url64(32) + "x",
    "discord": "MTk4NjIyNDgzNDcxOTI1MjQ4" + "." + _url64(6) + "." + _url64(37) + "x",
    "discord webhook": "discord.com/api/webhooks/1234567890/" + _url64(68),
    "shopify": "shpat_" + _hex(32),
    "square": "sq0atp-" + _url64(22),
    "mailgun": "key-" + _hex(32),
    "mailchimp": _hex(32) + "-us12",
    "databricks": "dapi" + _hex(32),
    "vault": "hvs." + _url64(90),
    "age": "AGE-SECRET-KEY-1" + _some(58, string.ascii_uppercase + string.digits),
    "linear": "lin_api_" + _some(40),
    "new relic": "NRAK-" + _some(27, string.ascii_uppercase + string.digits),
    "postman": "PMAK-" + _hex(24) + "-" + _hex(34),
    "grafana": "glsa_" + _some(32) + "_" + _hex(8),
    "web token": _HEADER + "." + _url64(80) + "." + _url64(43),
    "long web token": _HEADER + "." + _url64(2500) + "." + _url64(342),
}
"""Secrets that are detected by their format."""

KNOWN: Final[Mapping[str, str]] = {
    "provider key": PROVIDER_KEY,
    "gateway token": TOKEN,
    "process secret key": SECRET_KEY,
    "process session token": "FwoG-" + _some(900, _LETTERS + "+/") + "=",
    "process key id": "process-key-id-1",
}
"""Secrets that are detected because this process knows them."""

PLACED: Final[Mapping[str, tuple[str, str, str]]] = {
    "aws secret key": ("aws_secret_access_key = ", _some(40, _LETTERS + "+/"), "\n"),
    "aws secret key in json": ('"SecretAccessKey": "', _some(40, _LETTERS + "+/"), '"'),
    "aws key pair in a table": ("Access key ID,Secret access key\nAKIA" + "Q" * 16 + ",", _some(40, _LETTERS + "+/"), "\n"),
    "bearer token": ("Authorization: Bearer ", _hex(32), "\n"),
    "bearer token in json": ('"authorization": "bearer ', _some(24) + "==", '"'),
    "login of a url": ("postgres://ada:", _some(12), "@db/x"),
    "private key": ("-----BEGIN PRIVATE KEY-----\n", _key_lines(12), "\n-----END PRIVATE KEY-----"),
    "ssh key": ("-----BEGIN OPENSSH PRIVATE KEY-----\n", _key_lines(5), "\n-----END OPENSSH PRIVATE KEY-----"),
    "rsa key": ("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n", _key_lines(6), "\n-----END RSA PRIVATE KEY-----"),
}
"""Secrets that are detected by the text around them: (before, secret, after)."""

SECRETS: Final[Mapping[str, str]] = {**SHAPED, **KNOWN, **{name: "".join(parts) for name, parts in PLACED.items()}}
"""A text with the secret, for every kind."""


def identifying_parts(kind: str) -> list[str]:
    """Return the parts of a secret that must not leak: its lines without their first four characters, which may be sent before
    they are known to be the start of a secret."""
    secret = PLACED[kind][1] if kind in PLACED else SECRETS[kind]
    return [line[4:20] for line in secret.splitlines() if len(line) >= 8]


def set_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the credentials of ``KNOWN`` the credentials of this process."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KNOWN["process secret key"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", KNOWN["process session token"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KNOWN["process key id"])


def leaked_kinds(out: str, secrets: Collection[str]) -> list[str]:
    """Return the kinds of ``secrets`` that ``out`` contains."""
    return [kind for kind in secrets if any(part in out for part in identifying_parts(kind))]


def text_with_secrets(batch: Mapping[str, str]) -> str:
    """Return a text with all secrets of ``batch``."""
    return "\n".join(batch.values())


def _batches() -> Iterator[dict[str, str]]:
    batch: dict[str, str] = {}
    for kind, secret in sorted(SECRETS.items(), key=lambda one: len(one[1])):
        if batch and sum(map(len, batch.values())) + len(secret) > _ROOM:
            yield batch
            batch = {}
        batch[kind] = secret
    yield batch


BATCHES: Final = list(_batches())
"""All secrets, in batches that fit into the text of an error."""
