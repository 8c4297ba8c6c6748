"""What every test shares."""

import os

import pytest
from hypothesis import settings

settings.register_profile("everyday", deadline=None, print_blob=True)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5000)
settings.load_profile("soak" if os.environ.get("SPASS_SOAK") else "everyday")


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the functions do."""
    return "asyncio"
