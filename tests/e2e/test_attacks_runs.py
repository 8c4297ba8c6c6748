"""One tenant asks for many runs, each of which keeps its worker. Another tenant's run begins beside them."""

from pathlib import Path
from typing import Final

from tests.e2e.managed_gateway import NEIGHBOUR, Managed, managed_gateway, wait_until

WORKERS: Final = 8
RUNS: Final = 3 * WORKERS


def test_runs_that_keep_all_workers_do_not_stop_those_of_another_tenant(tmp_path: Path) -> None:
    with managed_gateway(tmp_path) as plant:
        neighbour = Managed(plant.gateway, plant.upstream, NEIGHBOUR)
        agents = [plant.create() for _ in range(RUNS)]
        runs = [(agent, plant.start_run(agent, input=f"hold {number}")) for number, agent in enumerate(agents)]
        wait_until(lambda: len(plant.upstream.requests) == WORKERS)
        statuses = [plant.get(f"/{agent}/runs/{run}")["status"] for agent, run in runs]
        assert statuses == ["running"] * WORKERS + ["queued"] * (RUNS - WORKERS), "a tenant alone gets all workers, in order"
        with neighbour.http:
            agent = neighbour.create()
            run = neighbour.start_run(agent, input="Hello.")
            assert neighbour.run_to_its_end(agent, run)["status"] == "succeeded", "one more worker than a tenant may take"
        plant.upstream.release.set()
        assert [plant.run_to_its_end(agent, run)["status"] for agent, run in runs] == ["succeeded"] * RUNS
