"""Reset the state of the process that others, restored from the same snapshot, have too."""

import os
import random
import ssl
from typing import Final

from spass.redaction.text import reload_environment

_SEED_BYTES: Final = 32


def reset_process_state() -> None:
    """Reseed the generators of random numbers, and forget which credentials are taken out of the log."""
    random.seed()
    ssl.RAND_add(os.urandom(_SEED_BYTES), _SEED_BYTES)  # the keys of TLS connections come from this one
    reload_environment()
