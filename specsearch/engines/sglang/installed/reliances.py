"""What specsearch relies on inside SGLang, so that a release nobody here has seen works unless it changed that.

A needle is a flag (`--port`), a file of the package (`launch_server.py`) or a text that some source of it holds.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from specsearch.engines.sglang.installed.profiles import OLDEST, is_known, release


@dataclass(frozen=True, slots=True)
class Reliance:
    """One thing that a version must have, in one of several spellings."""

    name: str
    any_of: tuple[str, ...]
    without: str  # what happens where it is gone
    required: bool = False  # whether nothing can be measured then
    since: str = OLDEST


def _flag(name: str, since: str = OLDEST) -> Reliance:
    given = "specsearch gives it by itself, and every launch ends with exit code 2"
    return Reliance(f"the flag {name}", (name,), given, required=True, since=since)


RELIANCES = (
    Reliance("the module sglang.launch_server", ("launch_server.py",), "no server can be started", required=True),
    *map(_flag, ("--model-path", "--tp-size", "--host", "--port", "--weight-version", "--random-seed")),
    *map(_flag, ("--enable-metrics", "--max-running-requests", "--mem-fraction-static", "--page-size")),
    *map(_flag, ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")),
    *map(_flag, ("--context-length", "--chunked-prefill-size", "--decode-log-interval")),
    _flag("--incremental-streaming-output", since="0.5.10"),
    Reliance(
        "the log line that says ready",
        ("The server is fired up and ready to roll!",),
        "no trial would be seen to be ready",
        required=True,
    ),
    Reliance("the endpoint /generate", ("/generate",), "no request can be sent", required=True),
    Reliance("the endpoint /health", ("/health",), "no trial would be seen to be ready", required=True),
    Reliance(
        "the endpoint /server_info",
        ("/server_info", "/get_server_info"),
        "a trial could not tell its own server from another one, nor what that runs",
        required=True,
    ),
    Reliance("the field completion_tokens", ("completion_tokens",), "no tokens can be counted", required=True),
    Reliance(
        "the field spec_verify_ct of an answer",
        ("spec_verify_ct",),
        "accept length and break-even are missing from every row, and a drafter that does nothing is not noticed",
    ),
    Reliance(
        "the field of an answer that counts accepted drafts",
        ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        "accept length is derived from the tokens of each request, which is a little less exact",
    ),
    Reliance(
        "the histogram of accepted drafts",
        ("spec_correct_drafts_histogram", "spec_accept_histogram"),
        "the accept length of shorter chains cannot be predicted",
    ),
    Reliance(
        "the server's own accept length",
        ("avg_spec_accept_length",),
        "the measured accept length is not checked against it",
    ),
    Reliance(
        "the counter cuda_graph_passes",
        ("cuda_graph_passes",),
        "the share of decode passes inside a CUDA graph is taken from the log",
    ),
    Reliance(
        "the log lines of graph captures",
        ("CUDA graph begin", "cuda graph begin"),
        "captured graphs, their time and memory are missing from the rows",
    ),
    Reliance(
        "the log line of decode batches",
        ("Decode batch",),
        "graphs and queues are not seen in the log; only the counters tell of them",
    ),
    Reliance(
        "the log line before weights are loaded",
        ("Load weight begin",),
        "memory that was free before the launch is missing from the rows",
    ),
    Reliance(
        "step times by batch size",
        ("SGLANG_RECORD_STEP_TIME",),
        "the server's own step time is missing beside the one that the client measures",
    ),
    Reliance("the endpoint /flush_cache", ("/flush_cache",), "prompts of one load point are cached for the next"),
    Reliance(
        "the endpoint /abort_request",
        ("/abort_request",),
        "a server with running requests is stopped by force, which takes longer",
    ),
    Reliance(
        "the number of requests that the server admits",
        ("effective_max_running_requests_per_dp",),
        "a load point that the server queues is seen in the log alone",
    ),
    Reliance(
        "the names of its processes",
        ("sglang::scheduler",),
        "the environment of the ranks is not read back: variables that SGLang sets by itself go unnoticed",
    ),
    Reliance(
        "the environment in its own description",
        ("SGLANG_EXPOSE_OWN_ENV_VARS",),
        "where the processes of a server cannot be read, as in a container, neither can their environment",
        since="0.5.19",
    ),
)
NEEDLES = tuple(dict.fromkeys(needle for reliance in RELIANCES for needle in reliance.any_of))


def missing(version: str, absent: Collection[str]) -> Iterator[Reliance]:
    """What an installed version no longer has, given the needles that its source lacks."""
    for reliance in RELIANCES:
        too_old = is_known(version) and release(version) < release(reliance.since)
        if not too_old and all(needle in absent for needle in reliance.any_of):
            yield reliance
