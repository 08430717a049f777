"""A study without Ray: one trial after the other, in this process."""

from functools import partial

from specsearch.clock import Clock
from specsearch.executors.driver import RunTrial, StudyDriver
from specsearch.runners.workplace import Workplace
from specsearch.study import Done, Wait
from specsearch.trial import TrialRequest


def run_in_process(driver: StudyDriver, workplace: Workplace, *, run_trial: RunTrial, clock: Clock) -> Done:
    """Run the study to its end in one place; raises HostNotFit once the place takes no more trials."""
    driver.nodes = {workplace.node}
    driver.begin()
    while True:
        match driver.next():
            case TrialRequest() as request:
                moved = partial(driver.progressed, request)
                driver.finish(request, run_trial(request, workplace, clock=clock, stop=driver.stop, on_progress=moved))
            case Done() as done:
                return done
            case Wait():
                raise RuntimeError("the study waits for a trial while none is running")
