"""One run of a study: folder, lock, plan, executor, progress, verdict."""

import argparse
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from specsearch import __version__
from specsearch.clock import Clock, SystemClock
from specsearch.errors import ConfigError, HostNotFit, NoRankableTrial, StorageError
from specsearch.executors.driver import USER, Event, StudyDriver, StudyEnded, TrialEnded, TrialStarted
from specsearch.executors.in_process import run_in_process
from specsearch.metrics import duration
from specsearch.plan_text import outlook_lines
from specsearch.prepare import Prepared, cost, host_problems
from specsearch.progress import ProgressDisplay
from specsearch.report import show_report
from specsearch.runners.server import run_trial
from specsearch.runners.workplace import Workplace, local_gpus
from specsearch.samplers import SAMPLERS, OptunaProposer
from specsearch.storage import ResultsFolder, Stamp, check_fingerprint, fingerprint_fields
from specsearch.storage.paths import saying
from specsearch.study import Done, Study
from specsearch.trial import TrialRequest, TrialResult, TrialStatus

_log = logging.getLogger("specsearch")


@dataclass(frozen=True)
class FolderStore:
    """Where the driver's rows go: the results folder, each row with the study's stamp."""

    folder: ResultsFolder
    stamp: Stamp
    began_in: os.stat_result  # the folder that was locked

    def note_running(self, request: TrialRequest) -> None:
        self._same_folder().note_running(request)

    def note_measured(self, result: TrialResult) -> None:
        self._same_folder().note_measured(result, self.stamp)

    def measured(self, request: TrialRequest) -> TrialResult | None:
        return self._same_folder().measured(request)

    def commit(self, result: TrialResult) -> None:
        self._same_folder().write(result, self.stamp)

    def forget_running(self, request: TrialRequest) -> None:
        self._same_folder().forget_running(request)

    def _same_folder(self) -> ResultsFolder:
        """The folder, unless it was moved or removed meanwhile: rows in a second one would be lost to the study."""
        path = self.folder.path
        if not path.exists() or not os.path.samestat(path.stat(), self.began_in):
            raise StorageError(
                f"{path} was moved or removed while the study ran; put it back, then run the same command again: the "
                "rows in it are kept"
            )
        return self.folder


def run_study(prepared: Prepared, arguments: argparse.Namespace) -> int:
    """Run or resume the study; returns the exit code after printing the verdict."""
    clock = SystemClock()
    folder = ResultsFolder(_results_path(arguments.results or Path("results") / prepared.config.name), clock)
    is_new = not folder.path.exists()
    if is_new:
        _require_fit_host(prepared, arguments, folder)  # before anything is made
    with ExitStack() as stack:
        stack.enter_context(folder.lock())
        if not is_new:  # only now: that the folder is in use says more than that its GPUs are
            _require_fit_host(prepared, arguments, folder)
        stack.enter_context(_log_file(folder.path / "study.log"))
        driver = _driver(prepared, folder, clock, extend=arguments.extend)
        _say_plan(prepared, driver, folder)
        end = driver.study.next_action(driver.results, [], elapsed_s=driver.elapsed_s)
        if isinstance(end, Done):
            _say("nothing is left to run")
            return _show(prepared, folder, arguments, end)
        if not _confirmed(prepared, driver, arguments):
            _say("nothing was started")
            return 0
        display = ProgressDisplay(clock)
        display.driver = driver
        stack.callback(display.close)
        driver.observers += [display, _log_event]
        interrupts = stack.enter_context(_Interrupts(driver))
        try:
            done = _execute(prepared, driver, folder, arguments, clock, interrupts)
        except HostNotFit:
            display.close()
            if driver.results:
                with suppress(NoRankableTrial):
                    _show(prepared, folder, arguments, Done("no node is left"))
            raise
        finally:
            display.close()
            _say(f"rows are in {folder.path}")
    return _conclude(prepared, folder, arguments, interrupts, done)


def _results_path(given: Path) -> Path:
    try:
        path = given.expanduser().absolute()
        str(path).encode()  # rows name the log of their trial, and a text in a row is UTF-8
    except (RuntimeError, UnicodeEncodeError) as error:  # nobody's home, bytes that are no text
        raise ConfigError("--results", [f"{str(given)!r} is no folder that can be used: {error}"]) from None
    return path


def _driver(prepared: Prepared, folder: ResultsFolder, clock: Clock, *, extend: bool) -> StudyDriver:
    """The driver over the rows that are there; refuses the rows of another study."""
    config = prepared.config
    fields = fingerprint_fields(config, prepared.engine.version())
    stored = folder.read()
    for sentence in (*stored.problems, *check_fingerprint(stored.fingerprints, fields, extend=extend)):
        _say(f"warning: {sentence}" if sentence in stored.problems else sentence)
    unfinished = folder.running()
    stamp = Stamp(
        study=config.name, fingerprint_fields=fields, specsearch_version=__version__, objective=config.objective
    )
    study = Study(
        space=config.space,
        objective=config.objective,
        budget=config.budget,
        proposer=OptunaProposer(SAMPLERS[config.sampler.type], config.sampler.seed),
        seed_points=config.seed_points,
        baseline=config.baseline,
    )
    if stored.results:
        kept = sum(row.status != TrialStatus.ABORTED for row in stored.results)
        _say(f"resuming: {kept} rows are kept, {len(unfinished)} unfinished trials are repeated")
    return StudyDriver(
        study,
        FolderStore(folder, stamp, folder.path.stat()),
        clock,
        results=stored.results,
        unfinished=unfinished,
        engine=prepared.engine.name,
        gpus_per_trial=prepared.gpus_per_trial,
        logs_dir=folder.logs_dir,
    )


def _require_fit_host(prepared: Prepared, arguments: argparse.Namespace, folder: ResultsFolder) -> None:
    """Whether this host is fit is decided before anything is started, unless the trials run elsewhere."""
    if arguments.executor == "ray" and arguments.address:
        return
    problems, warnings = host_problems(prepared.config, folder.path)
    for warning in warnings:
        _say(f"warning: {warning}")
    if problems:
        raise HostNotFit("this host is not fit for the study", problems)


def _say_plan(prepared: Prepared, driver: StudyDriver, folder: ResultsFolder) -> None:
    for line in outlook_lines(prepared, cost(prepared, driver.results)):
        _say(line)
    for warning in prepared.warnings:
        _say(f"warning: {warning}")
    _say(f"results folder {folder.path}")


def _confirmed(prepared: Prepared, driver: StudyDriver, arguments: argparse.Namespace) -> bool:
    """Whether GPU time may be spent; only a terminal is asked."""
    if prepared.engine.is_simulated or arguments.yes or not sys.stdin.isatty():
        return True
    sys.stderr.write("start? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _execute(
    prepared: Prepared,
    driver: StudyDriver,
    folder: ResultsFolder,
    arguments: argparse.Namespace,
    clock: Clock,
    interrupts: "_Interrupts",
) -> Done:
    if arguments.executor == "in-process":
        workplace = Workplace(prepared.config, folder.logs_dir, _gpus_of_a_trial(prepared))
        return run_in_process(driver, workplace, run_trial=run_trial, clock=clock)
    if arguments.address or os.environ.get("RAY_ADDRESS"):
        _show_ray_token()
    from specsearch.executors.ray_cluster import Demand, ray_session  # Ray takes seconds to import

    config = prepared.config
    demand = Demand(prepared.gpus_per_trial, config.cluster.trials_per_node)
    _say("connecting to Ray" if arguments.address else "starting Ray")
    with ray_session(
        arguments.address,
        demand=demand,
        gpus=None if arguments.address else local_gpus(config),
        include_dashboard=not arguments.no_dashboard,
    ) as session:
        from specsearch.executors.ray_tune import run_in_ray

        interrupts.listen()  # Ray has put handlers of its own in place
        if session.dashboard_url:
            token = " (its token: ray get-auth-token)" if session.asks_for_a_token else ""
            _say(f"dashboard {session.dashboard_url}{token}")
        return run_in_ray(
            driver,
            make_workplace=functools.partial(Workplace, config, folder.logs_dir),
            run_trial=run_trial,
            demand=demand,
            study_name=config.name,
            resource_wait_s=config.cluster.resource_wait_s,
            clock=clock,
            reuse_actors=prepared.engine.is_simulated,  # trials of seconds; a real launch takes minutes
            lost=session.lost,
        )


def _gpus_of_a_trial(prepared: Prepared) -> tuple[int, ...]:
    """The GPUs of this host that trials, one after the other, run on; raises HostNotFit where they are too few."""
    asked, here = prepared.gpus_per_trial, local_gpus(prepared.config)
    if len(here) < asked:
        raise HostNotFit(
            "no node is large enough", [f"a trial needs {asked} GPUs on one node, this host has {len(here)}"]
        )
    return here[:asked]


def _show_ray_token() -> None:
    """Show a cluster its token where this user has one.

    Ray 2.60 asks for it, reads this variable when it is imported, and sends the token only where it is set.
    """
    here = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if here or Path("~/.ray/auth_token").expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _conclude(
    prepared: Prepared, folder: ResultsFolder, arguments: argparse.Namespace, interrupts: "_Interrupts", done: Done
) -> int:
    """The verdict as far as the rows go, and the exit code."""
    if interrupts.signal is None:
        return _show(prepared, folder, arguments, done)
    with suppress(NoRankableTrial):
        _show(prepared, folder, arguments, done)
    _say(f"stopped by {signal.Signals(interrupts.signal).name}; the same command goes on where this run stopped")
    return 128 + interrupts.signal


def _show(prepared: Prepared, folder: ResultsFolder, arguments: argparse.Namespace, done: Done) -> int:
    space = prepared.config.space
    code = show_report(folder, arguments.format, ended=done.why, notes=prepared.warnings, space=space)
    return code if done.exit_code is None else done.exit_code


class _Interrupts:
    """Ctrl-C, SIGTERM or SIGHUP once: running trials end in good order; twice: at once; a third time: no waiting.

    A SIGHUP that is ignored (`nohup`) stays so.
    """

    def __init__(self, driver: StudyDriver) -> None:
        self.signal: int | None = None
        self._driver = driver
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def listen(self) -> None:
        """Take the signals, also from whoever took them meanwhile."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            before = signal.signal(number, self._hear)
            self._before.setdefault(number, before)

    def __enter__(self) -> "_Interrupts":
        self.listen()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        stop = self._driver.stop
        if self.signal is None:
            self.signal, stop.reason = number, USER
            _say("\nstopping: the running trial is taken down in good order; once more to do it at once")
        elif not stop.hard:
            stop.hard = True
            _say("\nstopping at once: servers are killed")
        else:
            raise KeyboardInterrupt


def _log_event(event: Event) -> None:
    """The study's log: what started, what ended and why."""
    match event:
        case TrialStarted(request):
            _log.info("started %s attempt %d: %s", request.name, request.attempt, request.kind)
        case TrialEnded(result):
            why = f" {result.reason}: {result.message}" if result.reason else ""
            _log.info("ended %s: %s%s after %s", result.name, result.status, why, duration(_seconds(result)))
        case StudyEnded(why):
            _log.info("search ended: %s", why)


def _seconds(result: TrialResult) -> float:
    return result.ended_at - result.started_at


class _StudyLog(logging.FileHandler):
    """A log that costs no study: what cannot be written, as on a full disk, is not written."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Everything that specsearch logs while the study runs, appended to the file."""
    with saying("open"):
        handler = _StudyLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    try:
        yield
    finally:
        _log.removeHandler(handler)
        handler.close()


def _say(text: str) -> None:
    with suppress(OSError):  # a study outlives the terminal that watched it
        print(text, file=sys.stderr, flush=True)
