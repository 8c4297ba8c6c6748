"""The errors of calls in process."""

from spass.core.errors import NoBackendAvailable
from spass.models.errors import BackendError

__all__ = ["BackendError", "NoBackendAvailable"]
