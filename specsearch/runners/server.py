"""One live trial, from claimed GPUs to proven-free memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specsearch.clock import Clock
from specsearch.config import StudyConfig
from specsearch.trial import Progress, StopFlag, TrialRequest, TrialResult


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a trial runs: the study, the node's GPUs it owns and the folder for its logs; picklable."""

    config: StudyConfig
    logs_dir: Path
    gpu_indices: tuple[int, ...]
    node: str = "local"


def run_trial(
    request: TrialRequest,
    workplace: Workplace,
    *,
    clock: Clock,
    stop: StopFlag,
    on_progress: Callable[[Progress], None],
) -> TrialResult:
    """Run one attempt of one trial to its end; every expected failure comes back as a result, only bugs raise."""
    raise NotImplementedError
