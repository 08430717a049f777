"""A study in Ray's metrics, so that its dashboard and Prometheus can draw it."""

import logging
from collections.abc import Mapping

from ray.util.metrics import Gauge

from specsearch.executors.driver import Event, StudyDriver, StudyEnded, TrialEnded, TrialMoved, TrialStarted
from specsearch.study import ranked

_log = logging.getLogger(__name__)
_RUNNING = "running"
_TAGS = ("study", "trial")


class RayMetrics:
    """An observer that keeps the gauges of one study up to date; Ray exports them with the prefix `ray_`."""

    def __init__(self, driver: StudyDriver, study_name: str) -> None:
        self._driver, self._study_name = driver, study_name
        self._best = Gauge("specsearch_best_objective", "objective of the best trial so far", _TAGS)
        self._phase = Gauge("specsearch_phase", "1 for the phase a trial is in", (*_TAGS, "phase"))
        self._state = Gauge("specsearch_trial_state", "1 for the state a trial is in", (*_TAGS, "state"))
        self._speed = Gauge("specsearch_output_tokens_per_s", "output tokens/s, as measured last", _TAGS)
        self._accept = Gauge("specsearch_accept_length", "tokens per verify step, as measured last", _TAGS)
        self._memory = Gauge("specsearch_gpu_memory_used_bytes", "used on the fullest GPU of a trial", _TAGS)
        self._phase_of: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case TrialStarted(request):
                self._set(self._state, 1, trial=request.name, state=_RUNNING)
            case TrialMoved(request, progress):
                self._enter(request.name, progress.phase.value)
                self._set(self._speed, progress.output_tokens_per_s, trial=request.name)
                self._set(self._accept, progress.accept_length, trial=request.name)
            case TrialEnded(result):
                trial = result.name
                self._enter(trial, None)
                self._set(self._state, 0, trial=trial, state=_RUNNING)
                self._set(self._state, 1, trial=trial, state=result.status.value)
                self._set(self._memory, result.facts.get("gpu_memory_used_bytes"), trial=trial)
                self._show_best()
            case StudyEnded():
                pass

    def _enter(self, trial: str, phase: str | None) -> None:
        left = self._phase_of.pop(trial, None)
        if left is not None and left != phase:
            self._set(self._phase, 0, trial=trial, phase=left)
        if phase is not None:
            self._phase_of[trial] = phase
            self._set(self._phase, 1, trial=trial, phase=phase)

    def _show_best(self) -> None:
        objective = self._driver.study.objective
        best = next(iter(ranked(self._driver.results, objective)), None)
        if best is not None:
            self._set(self._best, objective.score(best.measurements), trial=best.name)

    def _set(self, gauge: Gauge, value: float | None, **tags: str) -> None:
        if value is None:
            return
        try:
            gauge.set(value, tags=self._tags(tags))
        except (ValueError, TypeError, RuntimeError):  # a gauge is never worth a trial
            _log.exception("a metric could not be set")

    def _tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        return {"study": self._study_name, **tags}
