"""The limits of a workspace."""

from typing import Final

_MIB: Final = 1024 * 1024

MAX_FILES: Final = 5000
MAX_TOTAL_BYTES: Final = 100 * _MIB
"""Bytes of all files together."""
MAX_FILE_BYTES: Final = 4 * _MIB
MAX_BODY_BYTES: Final = 4 * _MIB
"""Bytes of one request's body: a file or an archive."""
