"""Name the release that a synthesis builds."""

from functools import cache

from operate.checkout import read_checkout


@cache
def release() -> str:
    """Return the commit of the checkout, with ``-dirty`` if files are changed, or ``unknown`` without git."""
    return read_checkout().release
