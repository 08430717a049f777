"""One live trial, from claimed GPUs to proven-free memory; the order of the steps is the text of `_Trial`."""

import functools
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from specsearch.clock import Clock, wait_until
from specsearch.engines import Engine, Identity, Server, make_engine
from specsearch.errors import DuplicateTrial, FailedTrial, HostNotFit, InvalidTrial, MemoryNotReleased, TrialError
from specsearch.host.fingerprint import host_facts
from specsearch.host.gpus import Gpus, wait_until_free, wait_until_released
from specsearch.host.leftovers import Leftovers, make_tmpdir, remove_tmpdir
from specsearch.host.ports import free_port, release_port
from specsearch.host.processes import ServerProcess, start_server
from specsearch.launch import LaunchPlan
from specsearch.runners._afterwards import look_back
from specsearch.runners._measuring import Bench
from specsearch.runners._readiness import (
    raise_if_dead,
    read_log,
    require_generation,
    require_our_server,
    wait_until_ready,
)
from specsearch.runners._record import TrialRecord
from specsearch.runners.workplace import Workplace, gpu_environment, gpus_of, gpus_per_trial, idle_of
from specsearch.search_space import point_key
from specsearch.trial import Phase, Progress, StopFlag, TrialKind, TrialRequest, TrialResult

__all__ = ["Workplace", "gpus_per_trial", "run_trial"]


def run_trial(
    request: TrialRequest,
    workplace: Workplace,
    *,
    clock: Clock,
    stop: StopFlag,
    on_progress: Callable[[Progress], None],
) -> TrialResult:
    """Run one attempt of one trial to its end; every expected failure comes back as a result, only bugs raise."""
    record = TrialRecord(request, clock, stop, on_progress, started_at=clock.time())
    engine = make_engine(workplace.config.engine, workplace.config.load_points)
    trial = _Trial(record, workplace, engine, clock)
    try:
        trial.run()
    except TrialError as error:
        record.error = record.error or error
    except (MemoryNotReleased, HostNotFit) as error:
        record.node_unfit = str(error)
        if record.phase in (Phase.CLAIM, Phase.GPUS_FREE):
            record.error, record.ended_in = FailedTrial("host_not_fit", str(error)), record.phase
    return trial.result()


class _Trial:
    """The steps of one trial on one place."""

    def __init__(self, record: TrialRecord, workplace: Workplace, engine: Engine, clock: Clock) -> None:
        self.record, self.workplace, self.engine, self.clock = record, workplace, engine, clock
        self.config = workplace.config
        self.limits = workplace.config.limits
        self.poll_s = 0.1 if engine.is_simulated else 1.0
        self.children: set[int] = set()
        self.token = f"{record.request.number}-{record.request.attempt}-{secrets.token_hex(6)}"

    @property
    def plan(self) -> LaunchPlan:
        assert self.record.plan is not None
        return self.record.plan

    def result(self) -> TrialResult:
        """The trial as it stands."""
        return self.record.result(
            engine=self.engine.name,
            version=self.engine.version(),
            gpu_count=len(self.workplace.gpu_indices),
            node=self.workplace.node,
        )

    def run(self) -> None:
        with ExitStack() as teardown:
            with self.record.during(Phase.CLAIM):
                gpus = gpus_of(self.workplace)
                self.record.host_facts = host_facts(gpus)
                self.record.model_facts = self.engine.model_facts(self.record.request.point)
                self.record.draft_context = self.engine.draft_context(self.record.request.point)
            with self.record.during(Phase.GPUS_FREE, "are the GPUs free?"):
                self._require_free(gpus)
            teardown.callback(self._require_released, gpus)
            self._live(gpus)

    def _require_free(self, gpus: Gpus) -> None:
        wait_until_free(
            gpus,
            idle_of(self.workplace),
            timeout_s=self.limits.release_s,
            poll_s=self.poll_s,
            clock=self.clock,
            stop=self.record.stop,
        )

    def _require_released(self, gpus: Gpus) -> None:
        with self.record.during(Phase.MEMORY_FREE, "is the GPU memory back?"):
            self.record.facts["gpu_release_s"] = wait_until_released(
                gpus,
                idle_of(self.workplace),
                timeout_s=self.limits.release_s,
                poll_s=self.poll_s,
                clock=self.clock,
                stop=self.record.stop,
            )

    def _live(self, gpus: Gpus) -> None:
        record = self.record
        with self._running() as (process, server):
            with record.during(Phase.READY, "loading"):
                wait_until_ready(record, self.engine, server, process, self.limits, gpus=gpus, poll_s=self.poll_s)
            record.facts["startup_s"] = record.phase_s[Phase.READY]
            with record.during(Phase.VERIFY, "is it ours, and does it generate?"):
                self._verify(server, gpus, process)
            alive = functools.partial(self._what_is_wrong, process)
            bench = Bench(record, server, self.plan.base_url, self.limits, alive, self.token, self.config.keep_requests)
            with record.during(Phase.WARM_UP), self._true_cause(process):
                bench.warm_up(self.config.load_points)
            with record.during(Phase.MEASURE), self._true_cause(process):
                bench.measure(self.config.load_points)
                raise_if_dead(record, self.engine, process)
                look_back(record, self.engine, server, self.config, wants_graphs=self._wants_graphs())
            record.on_progress(Progress(Phase.MEASURE, "measured", measured=self.result()))

    @contextmanager
    def _running(self) -> Iterator[tuple[ServerProcess, Server]]:
        """A started server; on leaving, its whole tree is gone."""
        record = self.record
        with ExitStack() as stack:
            with record.during(Phase.LAUNCH, "starting"):
                port = free_port()
                stack.callback(release_port, port)
                tmpdir = make_tmpdir(Path(tempfile.gettempdir()), self.token)
                stack.callback(remove_tmpdir, tmpdir)
                stack.callback(Leftovers.snapshot().remove)
                record.plan = self._make_plan(port, tmpdir)
                server = self.engine.server(record.plan)
                process = start_server(record.plan, trial=self.token, cwd=tmpdir, tmpdir=tmpdir, clock=self.clock)
            stack.callback(self._stop, process, server)
            yield process, server

    def _make_plan(self, port: int, tmpdir: Path) -> LaunchPlan:
        request = self.record.request
        plan = self.engine.plan(
            request.point,
            port=port,
            log_path=self.workplace.logs_dir / request.log_name,
            tmpdir=tmpdir,
            gpu_indices=self.workplace.gpu_indices,
            trial=self.token,
            pins=request.pins,
        )
        return replace(plan, env={**plan.env, **gpu_environment(self.workplace)})

    def _verify(self, server: Server, gpus: Gpus, process: ServerProcess) -> None:
        """The server is the one that was launched, runs something new, and generates."""
        record = self.record
        require_our_server(server)
        record.identity = self._identity(server, process)
        key = record.identity.key if record.identity else ""
        if key in record.request.known_effective:
            twin = record.request.known_effective[key]
            raise DuplicateTrial("same_effective_configuration", f"the server runs what t{twin:04d} ran already")
        require_generation(server, self.limits.request_s)
        used = [reading.used_bytes for reading in gpus.read()]
        record.facts["gpu_memory_used_bytes"] = max(used) if used else None
        self.children = {child.pid for child in process.children()}

    def _identity(self, server: Server, process: ServerProcess) -> Identity | None:
        """What the server says of itself; a knob that is searched by force tells trials apart, ignored as it is."""
        record, point = self.record, self.record.request.point
        log = self.engine.read_log(read_log(self.plan.log_path))
        identity = server.identity(point, log=log, environment=self.engine.own_environment(process.environments()))
        record.facts["memory_free_at_start_gb"] = log.memory_free_gb
        record.captures = log.captures
        if identity and record.request.kind == TrialKind.BASELINE:
            record.warnings += self.engine.settled_warnings(self.config.space, identity.settings)
        if identity and identity.lesson:
            record.warnings.append(
                f"one value of a knob changes nothing on these GPUs and is not launched again: from here on "
                f"{identity.lesson} holds; take the knob out of the search, or pin it in engine.args"
            )
        forced = {name: point[name] for name in self.config.force_inert if name in point}
        record.warnings += [f"{name} is inert: the engine ignores it, and it was searched by force" for name in forced]
        return replace(identity, key=f"{identity.key} {point_key(forced)}") if identity and forced else identity

    def _what_is_wrong(self, process: ServerProcess) -> str | None:
        """A sentence once the server, or a process it needs, is gone."""
        exit_code = process.exit_code()
        if exit_code is not None:
            return f"the server exited with {exit_code}"
        gone = self.children - {child.pid for child in process.children()}
        return f"process {min(gone)} of the server is gone" if gone else None

    @contextmanager
    def _true_cause(self, process: ServerProcess) -> Iterator[None]:
        """Failed requests and lost connections are symptoms: when the server died, its log says why."""
        try:
            yield
        except (FailedTrial, InvalidTrial) as error:
            if error.reason not in ("engine_died", "request_failures", "hang_after_ready"):
                raise
            wait_until(
                lambda: self._what_is_wrong(process) is not None,
                timeout_s=_LOOK_S,
                poll_s=self.poll_s,
                clock=self.clock,
            )
            wrong = self._what_is_wrong(process)
            if wrong is None:
                raise
            raise self._death(process, wrong) from error

    def _death(self, process: ServerProcess, wrong: str) -> TrialError:
        """Why the server died under load; one that lost a process may live on without ever answering again."""
        wait_until(lambda: process.exit_code() is not None, timeout_s=_DEATH_S, poll_s=self.poll_s, clock=self.clock)
        self.record.exit_code = process.exit_code()
        text = read_log(self.plan.log_path)
        error = self.engine.failure(text, exit_code=self.record.exit_code, phase=self.record.phase)
        if self.record.exit_code is None:
            message = f"{wrong}, though the server itself lives"
            return FailedTrial("child_crashed", message, detail=error.detail, advice=error.advice, facts=error.facts)
        return error

    def _wants_graphs(self) -> bool:
        settings = {**self.config.engine.args, **self.record.request.point}
        is_off = settings.get("cuda_graph_backend_decode") == "disabled" or any(
            settings.get(name) is True for name in ("disable_cuda_graph", "disable_decode_cuda_graph")
        )
        is_on = all(settings.get(name, True) is True for name in ("cuda_graph", "decode_cuda_graph"))
        return bool(self.workplace.gpu_indices) and is_on and not is_off

    def _stop(self, process: ServerProcess, server: Server) -> None:
        record = self.record
        with record.during(Phase.TEARDOWN, "stopping the server"):
            if process.exit_code() is None and not record.stop.hard:
                server.abort_all()
            report = process.stop(self.limits.stop_s, _KILL_S, hard=record.stop.hard, hurry=lambda: record.stop.hard)
            record.exit_code = process.exit_code() if record.exit_code is None else record.exit_code
            record.warnings += [report.problem] if report.problem else []
        if report.survivors:
            who = ", ".join(f"{p.pid} ({p.state}, {p.command})" for p in report.survivors)
            raise MemoryNotReleased(
                f"processes of the stopped server are still alive: {who}; "
                "state D means the driver holds them: the node may need a reset before it takes trials again"
            )


_KILL_S = 30.0  # SIGKILL to gone; longer means that the driver holds the process
_DEATH_S = 7.0  # SGLang sleeps 5 s for crash diagnostics before it exits
_LOOK_S = 1.0  # the load generator has already waited for a death that explains failed requests
