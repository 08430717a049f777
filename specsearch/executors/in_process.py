"""A study without Ray: one trial after the other, in this process."""

import logging
from functools import partial

from specsearch.clock import Clock
from specsearch.executors.driver import RunTrial, StudyDriver
from specsearch.host.processes import end_leftovers, leftovers
from specsearch.runners.workplace import Workplace
from specsearch.study import Done, Wait
from specsearch.trial import TrialRequest

_log = logging.getLogger(__name__)


def run_in_process(driver: StudyDriver, workplace: Workplace, *, run_trial: RunTrial, clock: Clock) -> Done:
    """Run the study to its end in one place; raises HostNotFit once the place takes no more trials."""
    driver.nodes = {workplace.node}
    end_what_is_left(clock)
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


def end_what_is_left(clock: Clock) -> None:
    """End servers of runs that were killed together with their guards: nothing else does, and they hold GPU memory."""
    found = leftovers()
    if found:
        stay = end_leftovers(found, clock=clock)
        ended = [str(process) for process in found if process not in stay]
        _log.warning("left by an earlier run and ended: %s; not to be ended: %s", ended, [str(p) for p in stay])
