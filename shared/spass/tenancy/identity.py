"""Who calls: a token's tenant and rights, and the caller of one request."""

import hashlib
from dataclasses import dataclass

from spass.core.errors import InvalidToken
from spass.core.ids import RequestId, TenantId, UserId
from spass.tenancy.config import GatewayConfig
from spass.tenancy.scalars import ANY_MODEL


@dataclass(frozen=True, slots=True)
class Identity:
    """What a token stands for."""

    tenant: TenantId
    token_id: str
    admin: bool
    allowed_models: tuple[str, ...]

    def allows(self, model: str) -> bool:
        """Whether the token may name ``model`` in a request."""
        return ANY_MODEL in self.allowed_models or model in self.allowed_models


class Tokens:
    """The tokens of the configuration. Only the SHA-256 of each is known, over the whole token."""

    def __init__(self, config: GatewayConfig) -> None:
        self._identities = {
            token.sha256: Identity(TenantId(tenant.id), token.id, token.admin, token.allowed_models)
            for tenant in config.tenants
            for token in tenant.tokens
        }

    def identify(self, token: str) -> Identity:
        """Whose ``token`` it is.

        Raises:
            InvalidToken: nobody's.
        """
        try:
            return self._identities[_digest(token)]
        except KeyError:
            raise InvalidToken("This token is not known to the gateway.") from None

    def __contains__(self, text: str) -> bool:
        return _digest(text) in self._identities


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and where in a tree of calls it stands. ``route`` is the template (``/a1/agents/{name}/chat``)."""

    identity: Identity
    user: UserId | None
    request_id: RequestId
    parent_request_id: RequestId | None
    depth: int
    route: str

    @property
    def tenant(self) -> TenantId:
        return self.identity.tenant
