"""The executor without Ray."""

from specsearch.clock import SystemClock
from specsearch.executors.driver import RunTrial, StudyDriver
from specsearch.executors.in_process import run_in_process
from specsearch.study import Done
from tests.executors.contract import ExecutorContract
from tests.executors.table import make_workplace


class TestInProcess(ExecutorContract):
    def execute(self, driver: StudyDriver, run_trial: RunTrial) -> Done:
        workplace = make_workplace(gpu_indices=tuple(range(8)), node="here")
        return run_in_process(driver, workplace, run_trial=run_trial, clock=SystemClock())
