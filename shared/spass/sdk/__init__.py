"""The Python client of a gateway."""

from spass.sdk.client import Spass
from spass.sdk.errors import SpassApiError, SpassUnreachable

__all__ = ["Spass", "SpassApiError", "SpassUnreachable"]
