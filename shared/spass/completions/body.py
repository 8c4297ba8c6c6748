"""Base classes of OpenAI's request bodies: the body, read strictly, and the objects nested in it."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from spass.tenancy.strict_body import StrictBody

_NO_EFFECT: Final = Field(default=None, description="Accepted, without effect.")


class NestedObject(BaseModel):
    """An object inside a body: unknown keys are dropped, and values are not converted.

    Clients send back objects from the answers of other servers, with additional keys.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Body(StrictBody):
    """A whole body, with the parameters that every route takes."""

    # Clients send these to every server, some with values that OpenAI does not know.
    user: Any = None
    metadata: Any = _NO_EFFECT
    store: Any = _NO_EFFECT
    service_tier: Any = _NO_EFFECT
    safety_identifier: Any = _NO_EFFECT
    prompt_cache_key: Any = _NO_EFFECT
    prompt_cache_retention: Any = _NO_EFFECT
    cache_control: Any = _NO_EFFECT
