"""The simulated engine as the rest of specsearch sees it: SGLang's driver, another program behind it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specsearch.engines._base import NO_PINS
from specsearch.engines.sglang import SGLangEngine
from specsearch.engines.sglang.arguments.flags import ENV, reserved_problem, unknown_problem
from specsearch.engines.sglang.arguments.rules import context_length_of
from specsearch.engines.sglang.fitness import Findings, examine_flags, in_file
from specsearch.engines.sglang.installed.version import Installation
from specsearch.engines.simulated.arguments import MODELLED, VERSION, known_flags
from specsearch.engines.simulated.profiles import TARGETS, drafter_of
from specsearch.engines.simulated.settings import VARIABLE, Simulation
from specsearch.launch import LaunchPlan
from specsearch.search_space import ALGORITHM, PLAIN, Point, SearchSpace, Value, is_plain


@dataclass(frozen=True)
class SimulatedEngine(SGLangEngine):
    """SGLang's command line, log and HTTP surface in front of a model of a machine; no file of a model is needed."""

    name = "simulated"
    is_simulated = True

    @property
    def simulation(self) -> Simulation:
        """The machine that every trial pretends to be."""
        hardware = self.config.simulated
        names = [field.name for field in dataclasses.fields(Simulation)]
        return Simulation(**{name: getattr(hardware, name) for name in names})

    def version(self) -> str:
        """The version whose surface is imitated, whatever is installed."""
        return VERSION

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
        plan = super().plan(
            point, port=port, log_path=log_path, tmpdir=tmpdir, gpu_indices=gpu_indices, trial=trial, pins=pins
        )
        return dataclasses.replace(plan, env={**plan.env, VARIABLE: self.simulation.as_json()})

    def model_facts(self, point: Point) -> dict[str, str]:
        """Simulated models have no files."""
        return {}

    def draft_context(self, point: Point) -> int | None:
        """The context of a drafter that was made for less text than the server takes."""
        settings = self.rules.settings(point)
        if is_plain(point) or str(settings[ALGORITHM]).upper() == "NGRAM":
            return None
        own = drafter_of(str(settings.get("draft_model")), self.config.simulated.drafter).context_length
        target = TARGETS[self.config.simulated.target].context_length
        return own if own is not None and own < (context_length_of(settings) or target) else None

    def _pinned(self) -> Mapping[str, Value]:
        """The drafter of the simulated machine serves where the search space names none."""
        return {"draft_model": self.config.simulated.drafter, **self.config.args}

    def _launcher(self) -> tuple[str, ...]:
        return (self._python(), "-m", "specsearch.engines.simulated.server")

    def _installation(self) -> Installation:
        return Installation(VERSION)

    def _examine_version(self, found: Findings, dry_run: bool) -> None:
        """What the simulated machine cannot be is said here."""
        found.errors += self.simulation.problems()
        if self.config.version not in (None, VERSION):
            found.warnings.append(
                f"engine.version {self.config.version} is not consulted: the simulated engine imitates SGLang {VERSION}"
            )

    def _examine_flags(self, found: Findings, space: SearchSpace) -> None:
        rules = self.rules
        examine_flags(found, Installation(None), rules, space)
        names = [name for name in dict.fromkeys((*rules.args, *space.by_name)) if not name.startswith(ENV)]
        for name in names:
            problem = unknown_problem(name, known_flags(), VERSION, rules.profile)
            if problem and not reserved_problem(name):
                found.errors.append(in_file(problem, name, space))

    def _examine_drafters(self, found: Findings, space: SearchSpace, dry_run: bool) -> None:
        """No model is read; what counts is whether the algorithm can be imitated."""
        parameter = space.by_name.get(ALGORITHM)
        for value in parameter.all_values() if parameter else ():
            if value != PLAIN and str(value).upper() not in MODELLED:
                found.errors.append(f"{ALGORITHM} {value} is not simulated; simulated are {', '.join(MODELLED)}")
