"""Every error specsearch raises on purpose.

    SpecSearchError
    ├── ConfigError            the YAML, the options or the drafter are wrong          exit 2
    ├── HostNotFit             no GPUs, busy GPUs, wrong versions, cluster too small   exit 3
    ├── NoRankableTrial        the study ended and no trial can be ranked              exit 1
    ├── TrialError             ends one trial; becomes its row
    │   ├── InfeasibleTrial    the configuration cannot run here; never retried
    │   ├── FailedTrial        the host or the run is to blame; retried a bounded number of times
    │   ├── InvalidTrial       numbers exist but must not be trusted; never ranked
    │   ├── DuplicateTrial     the server resolved to a configuration already measured
    │   └── AbortedTrial       the user or the budget ended it
    ├── MemoryNotReleased      teardown could not be shown complete; the node takes no more trials
    └── StorageError           unreadable rows, other schema version, folder in use    exit 4

Anything else that escapes is a bug: exit 70.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar


class SpecSearchError(Exception):
    """Something specsearch can say in a sentence."""

    exit_code: ClassVar[int] = 70


class _Problems(SpecSearchError):
    """Several mistakes found together; each is a sentence."""

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.where = where
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{where}:\n{lines}" if len(self.problems) != 1 else f"{where}: {self.problems[0]}")

    def __reduce__(self) -> tuple[type, tuple[str, tuple[str, ...]]]:
        return type(self), (self.where, self.problems)


class ConfigError(_Problems):
    """The search space, the options or the drafter are wrong; every mistake is listed."""

    exit_code = 2


class HostNotFit(_Problems):
    """This host or cluster cannot run the study; asked and available are named."""

    exit_code = 3


class NoRankableTrial(SpecSearchError):
    """The study ended without a single trial that can be ranked."""

    exit_code = 1


class StorageError(SpecSearchError):
    """The results folder cannot be read, written or used."""

    exit_code = 4


class TrialError(SpecSearchError):
    """Ends one trial; `status` and `reason` become its row.

    `detail` is the decisive line of the engine's log, `advice` what to do about it. `lesson` is a constraint that
    every point must obey after this failure, `within` the knobs (or beginnings of names, `env.NCCL_*`) that it is
    bound to: it holds wherever one of them has another value. `facts` are the few numbers and names that help
    (`rank`, `asked`, `available`), as text.
    """

    status: ClassVar[str]

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        detail: str | None = None,
        advice: str | None = None,
        lesson: str = "",
        within: Sequence[str] = (),
        facts: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = detail
        self.advice = advice
        self.lesson = lesson
        self.within = tuple(within)
        self.facts = dict(facts or {})


class InfeasibleTrial(TrialError):
    """The configuration cannot run here."""

    status = "infeasible"


class FailedTrial(TrialError):
    """The host or the run is to blame, not the configuration."""

    status = "failed"


class InvalidTrial(TrialError):
    """Numbers exist and must not be trusted."""

    status = "invalid"


class DuplicateTrial(TrialError):
    """The server resolved to an effective configuration that is already measured."""

    status = "skipped_duplicate"


class AbortedTrial(TrialError):
    """The user or the budget ended the trial."""

    status = "aborted"


class MemoryNotReleased(SpecSearchError):
    """Teardown could not be shown complete: processes or GPU memory remain."""

    exit_code = 3
