"""Call xAI (https://docs.x.ai), which reports the cost of each call."""

from typing import ClassVar

from spass.models.providers.openai_compatible import OpenAiCompatible


class Xai(OpenAiCompatible):
    base_url: ClassVar[str] = "https://api.x.ai/v1"
    unsupported_fields: ClassVar[frozenset[str]] = frozenset({"logit_bias", "verbosity"})
