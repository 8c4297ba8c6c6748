"""What every test shares."""

import os

# As deployed: one thread per query. numpy reads this when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

settings.register_profile("everyday", deadline=None, print_blob=True)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5000)
settings.load_profile("soak" if os.environ.get("SPASS_SOAK") else "everyday")


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the functions do."""
    return "asyncio"
