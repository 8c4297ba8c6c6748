"""Reset the state that processes restored from the same snapshot share."""

import os
import random
import ssl
from typing import Final

from spass.redaction.text import reload_environment

_SEED_BYTES: Final = 32


def reset_process_state() -> None:
    """Reseed the random number generators, and read again which credentials the log redacts."""
    random.seed()
    ssl.RAND_add(os.urandom(_SEED_BYTES), _SEED_BYTES)  # OpenSSL's generator makes the keys of TLS connections
    reload_environment()
