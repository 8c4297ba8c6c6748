"""Identify the tenant and the rights of a token, and describe the caller of one request."""

import hashlib
import json
from dataclasses import dataclass

from spass.core.errors import InvalidToken, UserIdRequired
from spass.core.ids import RequestId, TenantId, UserId
from spass.tenancy.config import GatewayConfig, ModelConfig
from spass.tenancy.scalars import ANY_MODEL


@dataclass(frozen=True, slots=True)
class Identity:
    """The tenant and the rights of a token."""

    tenant: TenantId
    token_id: str
    admin: bool
    allowed_models: tuple[str, ...]

    def allows(self, model: str) -> bool:
        return ANY_MODEL in self.allowed_models or model in self.allowed_models

    def chat_models(self, config: GatewayConfig) -> tuple[ModelConfig, ...]:
        """Return the chat models of the catalogue that the token may use, in the order of the catalogue."""
        return tuple(model for model in config.models if model.kind == "chat" and self.allows(model.name))


class Tokens:
    """The tokens of the configuration. It contains only their SHA-256."""

    def __init__(self, config: GatewayConfig) -> None:
        self._identities = {
            token.sha256: Identity(TenantId(tenant.id), token.id, token.admin, token.allowed_models)
            for tenant in config.tenants
            for token in tenant.tokens
        }
        self._by_id = {(identity.tenant, identity.token_id): identity for identity in self._identities.values()}

    def identify(self, token: str) -> Identity:
        """Return the identity of ``token``, or raise ``InvalidToken``."""
        try:
            return self._identities[_hash(token)]
        except KeyError:
            message = "The gateway does not know this token. Check the Authorization header, or ask the operator for a token."
            raise InvalidToken(message) from None

    def by_id(self, tenant: TenantId, token_id: str) -> Identity | None:
        """Return the identity of a token of ``tenant``, for work that was requested earlier, or None if the token is gone."""
        return self._by_id.get((tenant, token_id))

    def __contains__(self, text: str) -> bool:
        return _hash(text) in self._identities


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Caller:
    """The token and the user of a request. ``depth`` is the number of gateway calls that led to the request, and
    ``parent_request_id`` is the last of them. ``route`` is a template: ``/a1/agents/{name}/chat``."""

    identity: Identity
    user: UserId | None
    request_id: RequestId
    parent_request_id: RequestId | None
    depth: int
    route: str

    @property
    def tenant(self) -> TenantId:
        return self.identity.tenant

    @property
    def code_owner(self) -> str:
        """Return the owner of the caller's code as a hash: of the tenant's user, or of the token if the request has no user."""
        owner = ["token", self.identity.token_id] if self.user is None else ["user", self.user]
        return _hash(json.dumps([self.tenant, *owner]))

    @property
    def owner(self) -> UserId:
        """Return the owner of what the request makes for operators: the user, or one that stands for the token and that no header
        can name."""
        return self.user if self.user is not None else self._token_user

    @property
    def is_person(self) -> bool:
        """Return whether the request names a user. The one that stands for the token is none: no header can name it."""
        return self.user not in (None, self._token_user)

    @property
    def _token_user(self) -> UserId:
        return UserId(f"token/{self.identity.token_id}")

    def require_user(self) -> UserId:
        """Return the user of the request, or raise ``UserIdRequired``."""
        if self.user is None:
            raise UserIdRequired("Send the header SPASS-User-Id: it names the owner.", param="SPASS-User-Id")
        return self.user
