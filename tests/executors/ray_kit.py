"""A study from a table on the Ray that the test is connected to."""

from specsearch.clock import SystemClock
from specsearch.executors.driver import RunTrial, StudyDriver
from specsearch.executors.ray_cluster import Demand
from specsearch.executors.ray_tune import run_in_ray
from specsearch.study import Done
from tests.executors.table import make_workplace

WHOLE_NODE = Demand(8)


def run(
    made: StudyDriver,
    run_trial: RunTrial,
    *,
    demand: Demand = WHOLE_NODE,
    resource_wait_s: float = 20,
    study_name: str = "table",
) -> Done:
    return run_in_ray(
        made,
        make_workplace=make_workplace,
        run_trial=run_trial,
        demand=demand,
        study_name=study_name,
        resource_wait_s=resource_wait_s,
        clock=SystemClock(),
        reuse_actors=True,
    )
