"""What every engine is to the rest of specsearch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from specsearch.errors import TrialError
from specsearch.launch import LaunchPlan
from specsearch.search_space import Point, Rules, SearchSpace, Value
from specsearch.trial import Capture, Phase
from specsearch.workload import LoadPoint


@dataclass(frozen=True, slots=True)
class Fitness:
    """What can be said about engine, model, drafter and space before anything is launched; all sentences."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    inert: Mapping[str, str] = field(default_factory=dict)  # parameter the engine ignores → why


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What an engine's log says about the server; None where it says nothing."""

    ready: bool = False
    in_collective: bool = False  # it ends with the GPUs' communication being set up: the first collective hangs
    hopeless: bool = False  # it says that this server, though alive, will never be ready (its port was taken)
    decode_lines: int = 0
    decode_lines_in_graph: int = 0  # of those that tell
    decode_lines_that_tell: int = 0
    decode_lines_with_queue: int = 0
    graph_capture_s: float | None = None
    captures: tuple[Capture, ...] = ()
    memory_free_gb: float | None = None  # on the fullest GPU, before anything was loaded
    settings: Mapping[str, str] = field(default_factory=dict)  # what really runs, where only the log tells it
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says it is and runs; from its own description of itself."""

    version: str | None
    settings: Mapping[str, str]  # canonical, launch-specific ones (ports, paths of logs) left out
    key: str  # equal for two servers that run the same configuration
    overridden: tuple[str, ...]  # "num_draft_tokens: asked 16, runs 4"
    accept_length: float | None  # lifetime, a cross-check only
    environment: Mapping[str, str] | None = None  # as the server process has it; None when it cannot be read
    most_requests: int | None = None  # how many it runs at once; None where it does not say
    log_interval: int | None = None  # decode steps between two lines, and between two moves of its counters
    lesson: str | None = None  # a constraint: the other values of a knob would run this same configuration


NO_LOG = LogFacts()
NO_PINS: Point = {}


class Engine(Protocol):
    """One kind of server; stateless, cheap to make and to pickle."""

    name: str  # the value of the column `engine`
    is_simulated: bool

    @property
    def rules(self) -> Rules:
        """What this version would fix by itself and what it would refuse."""

    def version(self) -> str | None:
        """The installed version, or the one the search space names; None when neither is known."""

    def fitness(self, space: SearchSpace, load_points: Sequence[LoadPoint], *, dry_run: bool) -> Fitness:
        """Everything that can be known before a launch; a missing model file is only a warning in a dry run."""

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
        """The launch of one canonical point; `trial` is the token by which the server is told from a stranger's.

        `pins` are given as well, below what the file pins and the point says.
        """

    def measuring_options(self) -> dict[str, Value]:
        """What every server is given so that it tells more; flags, and variables with `env.` before their names."""

    def model_facts(self, point: Point) -> dict[str, str]:
        """Revision and digest of target and drafter, as far as their files can be read on this host."""

    def draft_context(self, point: Point) -> int | None:
        """Tokens that the drafter was made for where the server stretches it beyond; else None."""

    def own_environment(self, processes: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str] | None:
        """The variables that decide how the server computes, from its processes' (command, environment).

        None when no process that computes can be read. Secrets and what belongs to this launch alone are left out.
        """

    def settled_warnings(self, space: SearchSpace, settled: Mapping[str, str]) -> tuple[str, ...]:
        """What of the space cannot run any more now that the baseline has resolved to these settings; sentences."""

    def server(self, plan: LaunchPlan) -> "Server":
        """A way to talk to the server that the plan starts."""

    def read_log(self, text: str) -> LogFacts:
        """Facts from a log, whatever its version's format; never zeros for what is not there."""

    def failure(self, text: str, *, exit_code: int | None, phase: Phase) -> TrialError:
        """Why the server died or never came up, from its log and exit code, as the error to raise."""


class Server(Protocol):
    """The HTTP surface of a launched server; every call has its own short time limit and raises no HTTP error."""

    def is_healthy(self, timeout_s: float) -> bool:
        """Whether it answers that it is ready to generate."""

    def generates(self, timeout_s: float) -> bool:
        """Whether one short real generation comes back non-empty."""

    def identity(
        self, point: Point, *, log: LogFacts = NO_LOG, environment: Mapping[str, str] | None = None
    ) -> Identity | None:
        """What it says of itself; None when it does not say (foreign body, 404, not JSON).

        What its log and the environment of its processes add is counted in.
        """

    def is_ours(self) -> bool:
        """Whether the server that answers is the one the plan started."""

    def flush_cache(self) -> bool:
        """Drop cached prefixes and counters; False when it refused."""

    def abort_all(self) -> None:
        """End running requests, so that a stop need not wait for them."""

    def step_times_s(self) -> Mapping[int, Sequence[float]] | None:
        """Seconds of a decode step by batch size, each a mean over a log interval; None when it does not tell."""

    def decode_passes(self) -> tuple[float, float] | None:
        """(passes inside a graph, passes outside) so far; None when it does not count them."""
