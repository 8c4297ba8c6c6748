"""The bench of cold starts measures every function that is deployed, started as Lambda starts it."""

from bench.coldstart import functions
from infra.routes import ROUTES
from infra.workers import WORKERS


def test_every_function_is_started_with_all_the_modules_that_it_serves() -> None:
    measured = {one.name: one for one in functions()}
    assert measured.keys() == {route.function_name for route in ROUTES} | {worker.function_name for worker in WORKERS}
    for route in ROUTES:
        started = measured[route.function_name]
        assert f"functions.{route.module}" in started.served or f"functions.{route.module}" in started.start
        assert ("uvicorn" in started.start) == route.long
