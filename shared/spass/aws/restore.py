"""Reset the state of the process that others, restored from the same snapshot, have too."""

import os
import random
import ssl
from typing import Final

import boto3

from spass.aws.hidden import look_again

_SEED_BYTES: Final = 32


def reset_process_state() -> None:
    """Reseed the generators of random numbers, and forget the credentials that modules keep.

    A snapshot may be days old, but ``time.monotonic`` stood still since then: what was read before it would pass as fresh.
    """
    random.seed()
    ssl.RAND_add(os.urandom(_SEED_BYTES), _SEED_BYTES)  # the keys of TLS connections come from this one
    boto3.DEFAULT_SESSION = None
    look_again()
