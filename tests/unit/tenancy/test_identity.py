"""Tokens, and the tenants and rights that they give."""

import hashlib

import pytest

from spass.core.errors import InvalidToken
from spass.core.ids import TenantId
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Tokens


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


CONFIG = GatewayConfig.model_validate(
    {
        "tenants": [
            {
                "id": "acme",
                "tokens": [
                    {"id": "admin", "sha256": sha256("secret-a"), "admin": True},
                    {"id": "app", "sha256": sha256("secret-b"), "allowed_models": ["small"]},
                ],
            },
            {"id": "other", "tokens": [{"id": "app", "sha256": sha256("secret-c"), "allowed_models": []}]},
        ],
    }
)


def test_a_token_gives_its_tenant_and_rights() -> None:
    tokens = Tokens(CONFIG)
    admin = tokens.identify("secret-a")
    assert (admin.tenant, admin.token_id, admin.admin) == ("acme", "admin", True)
    assert tokens.identify("secret-c").tenant == "other"


@pytest.mark.parametrize("token", ["", "secret", "secret-a ", "SECRET-A", sha256("secret-a"), "\ud800", "ü"])
def test_only_the_exact_token_is_accepted(token: str) -> None:
    with pytest.raises(InvalidToken) as caught:
        Tokens(CONFIG).identify(token)
    assert token not in caught.value.message or not token


def test_allowed_models_are_exact_names_or_a_star() -> None:
    tokens = Tokens(CONFIG)
    assert tokens.identify("secret-a").allows("anything")
    app = tokens.identify("secret-b")
    assert app.allows("small")
    assert not app.allows("smaller")
    assert not tokens.identify("secret-c").allows("small")


def test_a_token_is_found_by_its_id_within_its_tenant_until_it_is_gone() -> None:
    tokens = Tokens(CONFIG)
    assert tokens.by_id(TenantId("acme"), "app") == tokens.identify("secret-b")
    assert tokens.by_id(TenantId("other"), "app") == tokens.identify("secret-c")
    assert tokens.by_id(TenantId("other"), "admin") is None
    assert tokens.by_id(TenantId("acm"), "app") is None
