"""The real SGLang: from a point to a launch, and from what a server says to facts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specsearch.config import EngineConfig
from specsearch.engines._base import NO_PINS, Fitness, LogFacts
from specsearch.engines.sglang import effective
from specsearch.engines.sglang.arguments import measuring
from specsearch.engines.sglang.arguments.flags import ENV, argv_of, environment_of, flags_of
from specsearch.engines.sglang.arguments.prefix import examine_prefix, probe_prefix, python_of, with_prefix
from specsearch.engines.sglang.arguments.rules import SGLangRules, context_length_of
from specsearch.engines.sglang.fitness import (
    Findings,
    examine_drafters,
    examine_flags,
    examine_points,
    examine_values,
    examine_version,
)
from specsearch.engines.sglang.installed.version import Installation, installation
from specsearch.engines.sglang.logs import failures, log
from specsearch.engines.sglang.models import checkpoint
from specsearch.engines.sglang.models import drafter as drafters
from specsearch.engines.sglang.server import TOKEN_FLAG, SGLangServer
from specsearch.errors import TrialError
from specsearch.launch import LaunchPlan
from specsearch.search_space import UNSET, Point, SearchSpace, Value, is_plain
from specsearch.trial import Phase
from specsearch.workload import LoadPoint

HOST = "127.0.0.1"
# What SGLang limits itself to with speculation; without a limit of ours only plain decoding would go beyond it.
FEWEST_RUNNING_REQUESTS = 48


@dataclass(frozen=True)
class SGLangEngine:
    """SGLang in the interpreter that the configuration names.

    A subclass that serves the same surface may override `version`, `_launcher`, `_installation`, `_pinned`
    and the parts of `fitness`.
    """

    config: EngineConfig
    load_points: Sequence[LoadPoint] = field(default=(), repr=False)

    name = "sglang"
    is_simulated = False

    @property
    def rules(self) -> SGLangRules:
        unread = self._installation().unread
        return SGLangRules(
            self.version(),
            self._pinned(),
            self.config.env,
            self.config.model,
            unread=unread,
            tp_size=self.config.tp_size,
            check_drafter=self.config.check_drafter,
        )

    def version(self) -> str | None:
        return self._installation().version or self.config.version

    def fitness(self, space: SearchSpace, load_points: Sequence[LoadPoint], *, dry_run: bool) -> Fitness:
        found = Findings()
        self._examine_version(found, dry_run)
        examine_prefix(found, self.config)
        self._examine_flags(found, space)
        self._examine_drafters(found, space, dry_run)
        self._examine_points(found, space, load_points)
        rules = self.rules
        inert = {name: why for name in space.by_name if (why := rules.why_inert(name))}
        return Fitness(tuple(dict.fromkeys(found.errors)), tuple(dict.fromkeys(found.warnings)), inert)

    def plan(
        self,
        point: Point,
        *,
        port: int,
        log_path: Path,
        tmpdir: Path,
        gpu_indices: Sequence[int] | None,
        trial: str,
        pins: Point = NO_PINS,
    ) -> LaunchPlan:
        rules = self.rules
        asked = flags_of({**pins, **rules.requested(point)}, rules.profile)
        flags = self._defaults() | asked
        to_serve = {name: value for name, value in flags.items() if name in asked or name not in measuring.OF_THE_TRIAL}
        head = ["--model-path", self.config.model, "--tp-size", str(self.config.tp_size)]
        start, declared = (*self._launcher(), *head), self._installation().flags
        given = rules.requested_environment(point)
        env = {name: value for name, value in measuring.VARIABLES.items() if name not in given}
        env |= environment_of(pins) | rules.environment(point) | {"TMPDIR": str(tmpdir)}
        if gpu_indices is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpu_indices))
        plan = LaunchPlan(
            argv=(*start, *argv_of(flags, declared), "--host", HOST, "--port", str(port), TOKEN_FLAG, trial),
            env=env,
            log_path=log_path,
            base_url=f"http://{HOST}:{port}",
            serve_argv=(*start, *argv_of(to_serve, declared)),
            unset=tuple(sorted(name for name, value in given.items() if value == UNSET)),
        )
        return with_prefix(plan, self.config, trial=trial, gpu_indices=gpu_indices, tmpdir=tmpdir)

    def measuring_options(self) -> dict[str, Value]:
        variables = {f"{ENV}{name}": value for name, value in measuring.VARIABLES.items()}
        return {**measuring.flags(self.version()), **variables}

    def model_facts(self, point: Point) -> dict[str, str]:
        settings = self.rules.settings(point)
        models = {"model": self.config.model, "draft_model": settings.get("draft_model")}
        revisions = {"model": settings.get("revision"), "draft_model": settings.get("speculative_draft_model_revision")}
        facts: dict[str, str] = {}
        for role, model in models.items():
            if model is not None and not (role == "draft_model" and is_plain(point)):
                facts |= checkpoint.model_facts(role, str(model), revisions[role], self.config.env)
        return facts

    def draft_context(self, point: Point) -> int | None:
        rules = self.rules
        settings = rules.settings(point)
        if is_plain(point) or "draft_model" not in settings:
            return None
        asked = rules.asked(point)
        drafter = asked.drafter
        short = drafters.short_context(drafter, asked.target, context_length_of(settings)) if drafter else None
        return short[0] if short else None

    def own_environment(self, processes: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str] | None:
        return effective.own_environment(processes)

    def settled_warnings(self, space: SearchSpace, settled: Mapping[str, str]) -> tuple[str, ...]:
        before, after = Findings(), Findings()
        examine_values(before, self.rules, space)
        examine_values(after, self.rules.settled_by(settled), space)
        news = [said for said in (*after.errors, *after.warnings) if said not in (*before.errors, *before.warnings)]
        origin = "as the baseline resolved it"
        return tuple(
            f"{said}{'' if origin in said else f' ({origin})'}; search or pin another value to change that"
            for said in news
        )

    def server(self, plan: LaunchPlan) -> SGLangServer:
        return SGLangServer(plan, self.rules)

    def read_log(self, text: str) -> LogFacts:
        return log.read_log(text)

    def failure(self, text: str, *, exit_code: int | None, phase: Phase) -> TrialError:
        return failures.failure(text, exit_code=exit_code, phase=phase)

    def _pinned(self) -> Mapping[str, Value]:
        """The arguments of every trial, below those of its point; speculative ones are left out of plain decoding."""
        return self.config.args

    def _python(self) -> str:
        return python_of(self.config)

    def _launcher(self) -> tuple[str, ...]:
        """The words that start a server, before any flag."""
        return (self._python(), "-m", "sglang.launch_server")

    def _installation(self) -> Installation:
        python = self._python() if self.config.python or self.config.command_prefix else None
        path = self.config.env.get("PYTHONPATH") if python else None
        return installation(python, path, probe_prefix(self.config))

    def _defaults(self) -> dict[str, Value]:
        """What every trial gets unless the search space says otherwise: equal in plain and speculative ones."""
        largest = max((point.concurrency for point in self.load_points), default=0)
        return {
            **measuring.flags(self.version()),
            "random_seed": 1,
            "max_running_requests": max(FEWEST_RUNNING_REQUESTS, largest),
        }

    def _examine_version(self, found: Findings, dry_run: bool) -> None:
        examine_version(found, self._installation(), self.config, self._python(), dry_run=dry_run)

    def _examine_flags(self, found: Findings, space: SearchSpace) -> None:
        examine_flags(found, self._installation(), self.rules, space)

    def _examine_drafters(self, found: Findings, space: SearchSpace, dry_run: bool) -> None:
        examine_drafters(found, self.rules, space, dry_run=dry_run)

    def _examine_points(self, found: Findings, space: SearchSpace, load_points: Sequence[LoadPoint]) -> None:
        examine_points(found, self.rules, space, load_points)
