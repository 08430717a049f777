"""Why a server died or never came up: from its log and exit code to a typed error.

The first cause decides, not the loudest line: of the deaths that the log holds the earliest that is not the consequence
of another, and in it the exception that started it. An exception that was caught and logged counts only where nothing
says that a process ended with one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from specsearch.engines.sglang.logs import log
from specsearch.engines.sglang.logs.captures import capture_under_way
from specsearch.engines.sglang.logs.causes import CAPTURE_FAILED, CAUSES, CONSEQUENCE, WARM_UP_FAILED, Cause, statements
from specsearch.engines.sglang.logs.failure_facts import CHILD, facts_of, holder_of, phase_of_start
from specsearch.engines.sglang.logs.lines import line_with, rank_at, without_colours
from specsearch.engines.sglang.logs.tracebacks import Death, Raised, deaths
from specsearch.errors import FailedTrial, InfeasibleTrial, TrialError
from specsearch.trial import Phase

_AT_WORK = (Phase.VERIFY, Phase.WARM_UP, Phase.MEASURE)
_RESOLUTION_ERRORS = ("ValueError", "AssertionError", "TypeError", "NotImplementedError", "KeyError")
_WEIGHTS = "Load weight "
_STOPPED = "SIGTERM received"
_OWN_KILL = ("kill_process_tree called", "eceived sigquit", "SIGQUIT received", "Scheduler hit an exception")
_KILLED = (-9, -15, 137, 143)
_BUS_ERROR = ("-7", "135")
_USAGE_ERROR = re.compile(r"^usage: .*?^(?P<line>[^\n:]+: error: [^\n]+)", re.MULTILINE | re.DOTALL)
_LATE = re.compile(r"illegal memory access|device-side assert|launch failure")  # told by a later call than failed
_NAMED_FRAMES = 9  # lines of the innermost frames: a call, its source and its marks each
_LONGEST_LINE = 1000
_ASK_THE_KERNEL = "Was it the kernel's out-of-memory killer? `dmesg` tells; or someone who cleaned up the node."


class _Clue(NamedTuple):
    """Something that may have ended the server; without a cause when nothing recognises it."""

    position: int
    detail: str
    text: str
    rank: str
    cause: Cause | None
    exception: str = ""  # its name
    is_certain: bool = True  # that it ended a process

    @property
    def is_consequence(self) -> bool:
        return self.cause.symptom if self.cause else CONSEQUENCE.search(self.detail) is not None


@dataclass(frozen=True)
class _End:
    text: str
    exit_code: int | None
    was_ready: bool

    @property
    def has_died(self) -> bool:
        """Its process ended, or lives on after a scheduler of it died."""
        return self.exit_code is not None or any(sign in self.text for sign in _OWN_KILL)

    @cached_property
    def child(self) -> re.Match[str] | None:
        """The first word of a process of the server that is gone."""
        return CHILD.search(self.text)

    @cached_property
    def stopped_at(self) -> int | None:
        """Where it says that it was told to stop; None when something had ended it before."""
        position = self.text.find(_STOPPED)
        return position if position >= 0 and (self.clue is None or position < self.clue.position) else None

    @cached_property
    def position(self) -> int:
        """Where the log says how the end began."""
        if self.stopped_at is not None:
            return self.stopped_at
        return self.clue.position if self.clue else self.child.start() if self.child else len(self.text)

    @cached_property
    def clue(self) -> _Clue | None:
        """What explains the end best; None when the log holds nothing but the end itself."""
        found = deaths(self.text)
        certain = [self._clue(death) for death in found if death.is_certain]
        certain += [
            _Clue(match.start(), line_with(self.text, match.start()), line_with(self.text, match.start()),
                  rank_at(self.text, match.start()), cause)
            for cause, match in statements(self.text)
            if not (cause.starting and self.was_ready)
        ]  # fmt: skip
        certain.sort(key=lambda clue: clue.position)
        # Of those that may have been caught the last is the likeliest to have ended its process.
        perhaps = [self._clue(death) for death in reversed(found) if not death.is_certain]
        clues = [*certain, *perhaps]
        causes = [clue for clue in clues if not clue.is_consequence]
        symptoms = [clue for clue in clues if clue.cause]
        return next(iter([*causes, *symptoms, *clues]), None)

    def _clue(self, death: Death) -> _Clue:
        cause, raised = self._cause(death)
        line = raised.message[0]
        if cause and (match := cause.pattern.search(raised.text)):
            line = line_with(raised.text, match.start())
        if cause is None and death.is_warm_up and not self.was_ready:
            cause = WARM_UP_FAILED
        if line == "AssertionError":
            line = f"{_innermost(raised.frames) or 'somewhere'}: AssertionError"
        return _Clue(death.position, line, death.text, death.rank, cause, raised.name, death.is_certain)

    def _cause(self, death: Death) -> tuple[Cause | None, Raised]:
        for cause in CAUSES:
            if cause.starting and self.was_ready:
                continue
            for raised in death.raised:
                if _fits(cause, raised, began=raised is death.first):
                    return cause, raised
        return None, next((one for one in death.raised if not CONSEQUENCE.search(one.text)), death.first)


def _fits(cause: Cause, raised: Raised, *, began: bool) -> bool:
    if cause.pattern.search(raised.text):
        return True
    if not began:
        return False
    innermost = "\n".join(raised.frames[-_NAMED_FRAMES:])
    return bool(cause.frames and cause.frames.search(innermost) and not _LATE.search(raised.message[0]))


def failure(text: str, *, exit_code: int | None, phase: Phase) -> TrialError:
    """The error that the end of a server is; `exit_code` None means that it still lives and does not answer."""
    text = without_colours(text)
    end = _End(text, exit_code, was_ready=log.READY in text or phase in _AT_WORK)
    error = next(iter(_explanations(end)))
    error.facts |= _facts(end)
    error.detail = _shortened(error.detail)
    return error


def _explanations(end: _End) -> Iterator[TrialError]:
    yield from _stopped_from_outside(end)
    if end.clue and end.clue.cause and (end.has_died or end.clue.is_certain):
        yield _recognised(end.clue, end.clue.cause, end)
    yield from _refused_by_the_parser(end)
    yield from _bus_error(end)
    yield from _refused_at_resolution(end)
    yield from _crash_at_work(end)
    yield from _silence(end)
    yield _unrecognised(end)


def _facts(end: _End) -> dict[str, str]:
    facts = facts_of(end.clue.text, end.clue.rank) if end.clue else {}
    if end.child and (end.clue is None or end.clue.is_consequence):
        facts = facts_of(end.child.group(), "") | facts
    if start := phase_of_start(end.text[: end.position], facts.get("rank", "")):
        facts["phase"] = start
    return facts


def _recognised(clue: _Clue, cause: Cause, end: _End) -> TrialError:
    if cause.reason == "oom_alloc":
        return _out_of_memory(clue, cause, end)
    return cause.error(
        cause.reason, cause.message, detail=clue.detail, advice=cause.advice, lesson=cause.lesson, within=cause.within
    )


def _out_of_memory(clue: _Clue, cause: Cause, end: _End) -> TrialError:
    """Running out of memory has three remedies, by when it happened."""
    if holder := holder_of(clue.text):
        return _taken_by(*holder, clue)
    asked = facts_of(clue.text, "").get("asked")
    wanted = f", {asked} were asked for" if asked else ""
    if end.was_ready:
        return FailedTrial(
            "oom_runtime",
            f"a GPU ran out of memory under load{wanted}",
            detail=clue.detail,
            advice="Lower mem_fraction_static or max_running_requests.",
        )
    capture = capture_under_way(end.text[: clue.position], clue.rank)
    if capture is None and not re.search(CAPTURE_FAILED, clue.text):
        return cause.error(cause.reason, f"{cause.message}{wanted}", detail=clue.detail, advice=cause.advice)
    name, available_gb = capture or ("decode", None)
    free = f", {available_gb} GB were free before" if available_gb is not None else ""
    return InfeasibleTrial(
        "graph_capture_oom",
        f"a GPU ran out of memory while the {name} graph was captured{free}{wanted}",
        detail=clue.detail,
        advice="Use a smaller cuda_graph_max_bs or a smaller mem_fraction_static.",
        facts={"available_before": f"{available_gb} GB"} if available_gb is not None else None,
    )


def _taken_by(process: str, size: str, clue: _Clue) -> TrialError:
    """The GPUs were free before the launch, and no two ranks share one."""
    return FailedTrial(
        "gpu_not_free",
        f"a GPU ran out of memory of which process {process}, no rank of this server, holds {size}",
        detail=clue.detail,
        advice="Look for the process with nvidia-smi (in a container the host has its number); end it or wait for it.",
        facts={"holder": process, "held": size},
    )


def _stopped_from_outside(end: _End) -> Iterator[TrialError]:
    if end.stopped_at is not None:
        yield FailedTrial(
            "engine_died",
            "the server was told to stop by someone else",
            detail=line_with(end.text, end.stopped_at),
            advice="Who else cleans up servers on this node?",
        )


def _refused_by_the_parser(end: _End) -> Iterator[TrialError]:
    """A usage text, one line with the mistake and exit code 2 are the command line's, whatever the line says."""
    refused = _USAGE_ERROR.search(end.text)
    if end.exit_code == 2 and refused and not end.was_ready:
        yield InfeasibleTrial(
            "arg_rejected",
            "SGLang's command line refused the arguments",
            detail=refused["line"],
            advice="Compare the flags with `python -m sglang.launch_server --help` of the installed version.",
        )


def _bus_error(end: _End) -> Iterator[TrialError]:
    codes = {str(end.exit_code), facts_of(end.child.group(), "").get("exit_code") if end.child else None}
    if codes & {*_BUS_ERROR}:
        yield FailedTrial(
            "shm_exhausted",
            "the server died of a bus error, as it does when shared memory runs out",
            detail=_line(end),
            advice="Give the container more of it (--shm-size 32g or --ipc=host); dead servers may have filled it.",
        )


def _refused_at_resolution(end: _End) -> Iterator[TrialError]:
    """Arguments are resolved before any weight is touched, and what they get wrong ends the parent itself."""
    if end.was_ready or end.clue is None or end.clue.exception not in _RESOLUTION_ERRORS:
        return
    if not end.clue.is_consequence and _WEIGHTS not in end.text[: end.clue.position]:
        yield InfeasibleTrial(
            "arg_rejected",
            "SGLang refused the arguments before it loaded anything",
            detail=end.clue.detail,
            advice="Exclude the combination with a constraint or a condition in the search space.",
        )


def _crash_at_work(end: _End) -> Iterator[TrialError]:
    if end.was_ready and end.has_died:
        advice = "It is tried once more; a second crash makes the configuration infeasible."
        yield FailedTrial(
            "runtime_crash",
            f"the server had been ready and died at work ({_exit_words(end.exit_code)})",
            detail=_line(end),
            advice=f"{_ASK_THE_KERNEL} {advice}" if end.clue is None else advice,
        )


def _silence(end: _End) -> Iterator[TrialError]:
    if not end.has_died:
        state = "stopped answering" if end.was_ready else "did not become ready"
        yield FailedTrial(
            "hang",
            f"the server lives but {state}",
            detail=_line(end) or _health_line(end),
            advice="Its log says how far it came.",
        )


def _unrecognised(end: _End) -> TrialError:
    words = _exit_words(end.exit_code)
    if end.clue and not end.clue.is_consequence:
        return FailedTrial(
            "unknown",
            f"the server died before it was ready ({words}), of no known cause",
            detail=end.clue.detail,
            advice="The log has the whole story.",
        )
    if end.child is None and end.exit_code in _KILLED and not any(sign in end.text for sign in _OWN_KILL):
        return FailedTrial(
            "engine_died",
            f"the server was killed from outside before it was ready ({words})",
            advice=_ASK_THE_KERNEL,
        )
    return FailedTrial(
        "engine_died",
        f"the server died before it was ready ({words}) and its log does not say why",
        detail=_line(end),
        advice=_ASK_THE_KERNEL,
    )


def _line(end: _End) -> str | None:
    """The decisive line; what is said of a process that is gone goes before what that did to others."""
    if end.clue and not (end.clue.is_consequence and end.child):
        return end.clue.detail
    return end.child.group() if end.child else None


def _health_line(end: _End) -> str | None:
    """What SGLang says where its own processes do not answer it."""
    position = end.text.rfind("Health check failed")
    return line_with(end.text, position) if position >= 0 else None


def _innermost(frames: list[str]) -> str | None:
    """The innermost frame, such as `File "x.py", line 3, in f`."""
    named = re.findall(r'File "[^"]+", line \d+, in \S+', "\n".join(frames))
    return named[-1] if named else None


def _shortened(line: str | None) -> str | None:
    """SGLang lists every architecture that it knows in one line."""
    return line if line is None or len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"


def _exit_words(exit_code: int | None) -> str:
    if exit_code is None:
        return "its main process lives on"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
