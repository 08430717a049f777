"""Why a server died or never came up: from its log and exit code to a typed error.

The first pattern of the table that fits decides, so what is specific stands before what is general, and a text that
SGLang prints as advice below every failed capture stands nowhere.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from specsearch.engines.sglang import log
from specsearch.errors import FailedTrial, InfeasibleTrial, TrialError
from specsearch.trial import Phase

_AT_WORK = (Phase.VERIFY, Phase.WARM_UP, Phase.MEASURE)


class Cause(NamedTuple):
    """One recognisable cause; `starting` marks those that can only end a server that was never ready."""

    pattern: re.Pattern[str]
    reason: str
    error: type[TrialError]
    message: str
    advice: str
    starting: bool = False
    lesson: str = ""  # what no further point may be, as a constraint
    within: tuple[str, ...] = ()  # the knobs to whose values the lesson is bound


def _cause(
    pattern: str,
    reason: str,
    error: type[TrialError],
    message: str,
    advice: str,
    *,
    starting: bool = False,
    lesson: str = "",
    within: tuple[str, ...] = (),
) -> Cause:
    return Cause(re.compile(pattern), reason, error, message, advice, starting, lesson, within)


_OUT_OF_MEMORY = r"CUDA out of memory|OutOfMemoryError|HIP out of memory"
_CAPTURE_FAILED = r"Capture (?:\w+ ){1,3}graph failed"  # of decoding, of a prefill, of a CPU
# How SGLang's backends and draft workers say that they draft chains only; as an exception, since one algorithm
# says the same in a warning and goes on with a chain.
_CHAINS_ONLY = (
    r"(?:Error|Exception): [^\n]*(?:(?:supports|requires) (?:only )?(?:topk|(?:--)?speculative.eagle.topk)[ <=]*1\b|"
    r"[Tt]opk > 1 [^\n]*support|n't support topk > 1)"
)
CAUSES = (
    _cause(
        r"\berror: (?:unrecognized arguments|ambiguous option|argument |the following arguments are required)",
        "arg_rejected",
        InfeasibleTrial,
        "SGLang's command line refused an argument",
        "Compare the flag with `python -m sglang.launch_server --help` of the installed version.",
        starting=True,
    ),
    _cause(
        r"selected index k out of range",
        "infeasible_params",
        InfeasibleTrial,
        "the draft tree holds fewer tokens than num_draft_tokens asks for",
        "Keep num_draft_tokens - 1 at or below eagle_topk + (num_steps - 1) * eagle_topk**2; memory is not the matter.",
    ),
    _cause(
        r"Target model's context_length",
        "draft_context_too_short",
        InfeasibleTrial,
        "the drafter's context is shorter than the server's",
        "Lower context_length. SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 lets it start, but long requests may then "
        "be accepted badly or crash.",
    ),
    _cause(
        _CHAINS_ONLY,
        "arg_rejected",
        InfeasibleTrial,
        "a draft tree is refused with this attention backend",
        "Search eagle_topk 1 only, or another attention_backend, or page_size 1.",
        lesson="eagle_topk <= 1",
        within=("*attention_backend", "page_size", "draft_model", "speculative_use_rejection_sampling"),
    ),
    _cause(
        r"(?:does not implement|object has no attribute) '?set_eagle3_layers_to_capture",
        "arg_rejected",
        InfeasibleTrial,
        "this target gives no hidden states to an EAGLE-3 drafter",
        "Search another speculative_algorithm; this SGLang has no EAGLE-3 for the target's architecture.",
        lesson="speculative_algorithm != 'EAGLE3'",
    ),
    _cause(
        r"is not supported in (?:decode )?attention backend|Unknown speculative algorithm name",
        "arg_rejected",
        InfeasibleTrial,
        "SGLang refuses this combination of arguments",
        "Exclude it with a constraint or a condition in the search space.",
    ),
    _cause(
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "oom_kv_budget",
        InfeasibleTrial,
        "no memory is left for the KV cache within mem_fraction_static",
        "Raise mem_fraction_static.",
        starting=True,
    ),
    _cause(
        rf"{_CAPTURE_FAILED}:[^\n]*(?:out of memory|OutOfMemoryError)|{_OUT_OF_MEMORY}",
        "oom_alloc",  # told apart by when it came, see _out_of_memory
        InfeasibleTrial,
        "a GPU ran out of memory while the model was loaded",
        "Lower mem_fraction_static.",
    ),
    _cause(
        r"no algorithm/protocol available",
        "nccl_config_error",
        InfeasibleTrial,
        "NCCL has no algorithm for one of its collectives under the NCCL_* variables of this trial",
        "Take the value that the line names out of the search space; some values serve some collectives only.",
        within=("env.NCCL_*",),
    ),
    _cause(
        r"shared memory segment /dev/shm/nccl-",
        "shm_exhausted",
        FailedTrial,
        "NCCL found too little shared memory",
        "Give the container more of it: --shm-size 32g or --ipc=host.",
    ),
    _cause(
        r"EADDRINUSE|[Aa]ddress already in use|Port is already in use\. dist_init_port|is not available in \d+ seconds",
        "port_taken",
        FailedTrial,
        "a port was taken by another process",
        "Nothing to do if it was once: a fresh port is taken for the next attempt.",
        starting=True,
    ),
    _cause(
        r"The memory capacity is unbalanced",
        "gpu_not_free",
        FailedTrial,
        "one GPU has much less free memory than another: something else holds memory there",
        "Look for the process that holds it with nvidia-smi.",
        starting=True,
    ),
    _cause(
        r"custom_all_?reduce\w*\.cuh?\w*:\d+|'CustomAll[Rr]educe\w*' object has no attribute|"
        r"(?:CUDA )?[Ee]rror[^\n]*\bcustom_all_reduce|File \"[^\"]*custom_all_reduce\w*\.py\"",
        "custom_all_reduce_error",
        InfeasibleTrial,
        "SGLang's custom all-reduce kernel failed on these GPUs",
        "Set custom_all_reduce: false, for the baseline too.",
        lesson="not custom_all_reduce",
    ),
    _cause(
        _CAPTURE_FAILED,
        "graph_capture_failed",
        InfeasibleTrial,
        "capturing a CUDA graph failed",
        "Search with cuda_graph: false, or with another attention backend.",
        starting=True,
    ),
    _cause(
        r"object has no attribute '(?:hot_token_id|set_embed|set_embed_and_head|get_embed_and_head)'",
        "missing_draft",
        InfeasibleTrial,
        "the model that was loaded as drafter is none: without a draft_model SGLang takes the target",
        "Name the drafter with draft_model.",
        starting=True,
    ),
    _cause(
        r"Repo id must be in the form|is not a local folder and is not a valid model identifier|"
        r"does not appear to have a file named|Cannot find any (?:model )?weights|"
        r"LocalEntryNotFoundError|RepositoryNotFoundError|No such file or directory: \S*config\.json",
        "model_not_found",
        InfeasibleTrial,
        "the files of the target or of the drafter were not found",
        "Check engine.model and draft_model on the node that ran the trial.",
        starting=True,
    ),
)  # fmt: skip

_RESOLUTION_ERRORS = ("ValueError", "AssertionError", "TypeError", "NotImplementedError", "KeyError")
_SIGNS_OF_WEIGHTS = ("Load weight begin", "Load weight end")
_OWN_KILL = ("kill_process_tree called", "eceived sigquit", "SIGQUIT received", "Scheduler hit an exception")
_KILLED = (-9, -15, 137, 143)
_USAGE_ERROR = re.compile(r"^usage: .*?^(?P<line>[^\n:]+: error: [^\n]+)", re.MULTILINE | re.DOTALL)
_ASKED = re.compile(r"Tried to allocate ([\d.]+ [KMG]i?B)")
_CHILD = re.compile(
    r"Rank \d+ scheduler died during initialization \(exit code: (?P<rank>-?\d+)\)"
    r"|Subprocess \S+ \(pid=\d+\) crashed with exit code (?P<child>-?\d+)"
    r"|Initialization failed\. warmup error:[^\n]*"
)


@dataclass(frozen=True, slots=True)
class _End:
    text: str
    exit_code: int | None
    was_ready: bool

    @property
    def has_died(self) -> bool:
        """Its process ended, or lives on after a scheduler of it died."""
        return self.exit_code is not None or any(sign in self.text for sign in _OWN_KILL)


def failure(text: str, *, exit_code: int | None, phase: Phase) -> TrialError:
    """The error that the end of a server is; `exit_code` None means that it still lives and does not answer."""
    text = log.without_colours(text)
    end = _End(text, exit_code, was_ready=log.READY in text or phase in _AT_WORK)
    return next(iter(_explanations(end)))


def _explanations(end: _End) -> Iterator[TrialError]:
    for cause in CAUSES:
        match = cause.pattern.search(end.text)
        if match and not (cause.starting and end.was_ready):
            yield _recognised(cause, match, end)
    yield from _refused_by_the_parser(end)
    yield from _bus_error(end)
    yield from _refused_at_resolution(end)
    yield from _stopped_from_outside(end)
    yield from _crash_at_work(end)
    yield from _silence(end)
    yield _unrecognised(end)


def _recognised(cause: Cause, match: re.Match[str], end: _End) -> TrialError:
    detail = log.line_with(end.text, match.start())
    if detail.startswith(("raise ", "File ")):  # a traceback's view of the source, not yet what it says
        detail = log.exception_line(end.text) or detail
    if cause.reason == "oom_alloc":
        return _out_of_memory(cause, detail, end)
    return cause.error(
        cause.reason, cause.message, detail=detail, advice=cause.advice, lesson=cause.lesson, within=cause.within
    )


def _out_of_memory(cause: Cause, detail: str, end: _End) -> TrialError:
    """Running out of memory has three remedies, by when it happened."""
    asked = _ASKED.search(end.text)
    wanted = f", {asked.group(1)} were asked for" if asked else ""
    if end.was_ready:
        return FailedTrial(
            "oom_runtime",
            f"a GPU ran out of memory under load{wanted}",
            detail=detail,
            advice="Lower mem_fraction_static or max_running_requests.",
        )
    capture = log.capture_under_way(end.text)
    if capture is None and not re.search(_CAPTURE_FAILED, end.text):
        return cause.error(cause.reason, f"{cause.message}{wanted}", detail=detail, advice=cause.advice)
    name, available_gb = capture or ("decode", None)
    free = f", {available_gb} GB were free before" if available_gb is not None else ""
    return InfeasibleTrial(
        "graph_capture_oom",
        f"a GPU ran out of memory while the {name} graph was captured{free}{wanted}",
        detail=detail,
        advice="Use a smaller cuda_graph_max_bs or a smaller mem_fraction_static.",
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
    if end.exit_code in (-7, 135):
        yield FailedTrial(
            "shm_exhausted",
            "the server died of a bus error, as it does when shared memory runs out",
            detail=log.exception_line(end.text),
            advice="Give the container more of it (--shm-size 32g or --ipc=host); dead servers may have filled it.",
        )


def _refused_at_resolution(end: _End) -> Iterator[TrialError]:
    """Arguments are resolved before any weight is touched, and what they get wrong ends the parent itself."""
    line = log.exception_line(end.text)
    if end.was_ready or line is None or any(sign in end.text for sign in _SIGNS_OF_WEIGHTS):
        return
    if log.exception_name(line) not in _RESOLUTION_ERRORS:
        return
    if line == "AssertionError":
        line = f"{log.last_frame(end.text) or 'somewhere'}: AssertionError"
    yield InfeasibleTrial(
        "arg_rejected",
        "SGLang refused the arguments before it loaded anything",
        detail=line,
        advice="Exclude the combination with a constraint or a condition in the search space.",
    )


def _stopped_from_outside(end: _End) -> Iterator[TrialError]:
    if "SIGTERM received" in end.text and "Scheduler hit an exception" not in end.text:
        yield FailedTrial(
            "engine_died",
            "the server was told to stop by someone else",
            detail=log.line_with(end.text, end.text.index("SIGTERM received")),
            advice="Who else cleans up servers on this node?",
        )


def _crash_at_work(end: _End) -> Iterator[TrialError]:
    if end.was_ready and end.has_died:
        yield FailedTrial(
            "runtime_crash",
            f"the server had been ready and died at work ({_exit_words(end.exit_code)})",
            detail=log.exception_line(end.text),
            advice="It is tried once more; a second crash makes the configuration infeasible.",
        )


def _silence(end: _End) -> Iterator[TrialError]:
    if not end.has_died:
        state = "stopped answering" if end.was_ready else "did not become ready"
        yield FailedTrial(
            "hang",
            f"the server lives but {state}",
            detail=log.exception_line(end.text),
            advice="Its log says how far it came.",
        )


def _unrecognised(end: _End) -> TrialError:
    child = _CHILD.search(end.text)
    detail = log.exception_line(end.text) or (child.group() if child else None)
    if detail is None and end.exit_code in _KILLED and not any(sign in end.text for sign in _OWN_KILL):
        return FailedTrial(
            "engine_died",
            f"the server was killed from outside before it was ready ({_exit_words(end.exit_code)})",
            advice="Was it the kernel's out-of-memory killer? `dmesg` tells; or someone who cleaned up the node.",
        )
    return FailedTrial(
        "engine_died",
        f"the server died before it was ready ({_exit_words(end.exit_code)})",
        detail=detail,
        advice="The log has the whole story; no known cause fits it.",
    )


def _exit_words(exit_code: int | None) -> str:
    if exit_code is None:
        return "its main process lives on"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
