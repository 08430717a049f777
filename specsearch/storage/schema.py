"""Every column of every table: name, type and what it means; docs/results.md is made from here.

A column may be added in a new minor version; readers fill it with null in older parts. Renaming a column, or
changing its type or meaning, is a new major version, which older readers refuse.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from specsearch.metrics import METRICS, TRIAL_FACTS, Metric
from specsearch.trial import Phase

SCHEMA_VERSION = "1.1"
VERSION_KEY = b"specsearch.schema"  # in the metadata of every part

TEXT = pa.string()
WHOLE = pa.int64()
NUMBER = pa.float64()
SWITCH = pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
TEXTS = pa.list_(pa.string())
COUNTS = pa.list_(pa.int64())
TEXT_MAP = pa.map_(pa.string(), pa.string())
CAPTURES = pa.list_(
    pa.struct(
        [
            ("name", TEXT),
            ("seconds", NUMBER),
            ("memory_gb", NUMBER),
            ("available_gb", NUMBER),
            ("sizes", COUNTS),
        ]
    )
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `meaning` is a sentence without its full stop."""

    name: str
    type: pa.DataType
    meaning: str


_ORIGIN = (
    Column("study", TEXT, "name of the study, from the search-space file"),
    Column("fingerprint", TEXT, "hash of everything that has to be equal for rows to be compared"),
    Column("engine", TEXT, "engine that was measured: sglang or simulated"),
    Column("simulated", SWITCH, "whether the engine is the simulated one; such rows are never compared with real ones"),
    Column("trial", WHOLE, "number of the trial, from 0; the retries of a trial share it"),
    Column("attempt", WHOLE, "1 for the first try of a trial, 2 and 3 for retries"),
    Column("status", TEXT, "how the attempt ended; only ok rows may be ranked"),
)
_OUTCOME = (
    Column("kind", TEXT, "why the trial was run: baseline, seed, search or matched_plain"),
    Column("name", TEXT, "number and configuration in a few words"),
    Column("reason", TEXT, "one machine-readable word for what ended the attempt; null when ok"),
    Column("message", TEXT, "the same as a sentence"),
    Column("detail", TEXT, "decisive line of the engine's log"),
    Column("advice", TEXT, "what can be done about it"),
    Column("lesson", TEXT, "a constraint learnt from this trial: no further point may violate it"),
    Column("failure_facts", TEXT_MAP, "the few facts that help with a failure: rank, memory asked for and free"),
    Column("phase", TEXT, "phase in which the attempt ended; null when it never started"),
    Column("objective", NUMBER, "score to rank by, more is better; finite, and null for every status but ok"),
    Column("objective_violation", NUMBER, "worst relative excess over a bound; 0 or less: all kept; null: no bound"),
    Column("bounds_kept", SWITCH, "whether every bound of the objective is kept; null for every status but ok"),
    Column("objective_spec", TEXT, "the objective itself as JSON: metric, load points, aggregate, bounds"),
)  # fmt: skip
NAMED_KNOBS: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("speculative_algorithm", TEXT, "speculative algorithm asked for; none is plain decoding"),
        Column("draft_model", TEXT, "path of the drafter asked for"),
        Column("num_steps", WHOLE, "draft steps asked for"),
        Column("eagle_topk", WHOLE, "branching of the draft tree asked for"),
        Column("num_draft_tokens", WHOLE, "tokens verified per step asked for, the root counted"),
        Column("cuda_graph", SWITCH, "whether CUDA graphs were asked for"),
        Column("cuda_graph_max_bs", WHOLE, "largest batch size to capture asked for"),
        Column("cuda_graph_bs", TEXT, "list of batch sizes to capture asked for"),
        Column("num_continuous_decode_steps", WHOLE, "continuous decode steps asked for"),
        Column("custom_all_reduce", SWITCH, "whether the custom all-reduce was allowed"),
        Column("attention_backend", TEXT, "attention backend asked for"),
    )
}
_CONFIGURATION = (
    Column("flags", TEXT_MAP, "every other searched server flag with its value; unset where it was left out"),
    Column("env", TEXT_MAP, "every searched environment variable with its value; unset where it was removed"),
    Column("point", TEXT, "the whole canonical point as JSON, with exact types; what a resumed study reads"),
    Column("command", TEXT, "the launch as one line to paste in a shell, pinned arguments and environment included"),
    Column(
        "serve_command", TEXT, "the same configuration as one would serve it, without the port and token of the trial"
    ),
    Column("engine_version", TEXT, "version that the server reported, else the installed one"),
    Column("effective", TEXT_MAP, "settings read back from the running server"),
    Column("effective_key", TEXT, "equal for two servers that ran the same configuration"),
    Column("effective_env", TEXT_MAP, "environment of the running server process; null where it could not be read"),
    Column("overridden", TEXTS, "settings that the server changed, as asked and run"),
    Column("pins", TEXT_MAP, "what the trial was given because the baseline had resolved to it"),
    Column("model_facts", TEXT_MAP, "revision and digest of the configuration and weights of target and drafter"),
    Column("captures", CAPTURES, "graphs that the server captured: seconds, GB taken, GB free before, batch sizes"),
    Column("queue_limited", SWITCH, "whether requests waited for admission while measuring; null: not known"),
    Column("draft_context_overridden", SWITCH, "whether the drafter ran with a context longer than its own"),
    Column("warnings", TEXTS, "what was odd and did not end the trial, as sentences"),
)
_COURSE = (
    Column("started_at", TIME, "start of the attempt; of one that was never launched, when that was decided"),
    Column("ended_at", TIME, "end of the attempt, teardown included"),
    Column("started_at_s", NUMBER, "start in seconds since the epoch, 0 when it never started"),
    Column("ended_at_s", NUMBER, "end in seconds since the epoch"),
    *(Column(f"phase_{phase}_s", NUMBER, f"seconds in the phase {phase}; null when not reached") for phase in Phase),
    Column("gpu_count", WHOLE, "GPUs that the trial owned"),
    Column("gpu_seconds", NUMBER, "GPUs × wall time of the attempt"),
    Column("exit_code", WHOLE, "exit code of the server where it ended by itself"),
    Column("log_path", TEXT, "log of the server"),
    Column("node", TEXT, "node that ran the trial"),
    Column("node_unfit", TEXT, "why the node takes no more trials; null while it may"),
    Column("host_facts", TEXT_MAP, "driver, GPUs, kernel and libraries of the node"),
)
_IDENTITY = (
    Column("fingerprint_fields", TEXT_MAP, "what the fingerprint is made of"),
    Column("specsearch_version", TEXT, "version of specsearch that wrote the row"),
    Column("schema_version", TEXT, "version of this table's columns"),
    Column("measurement_rows", WHOLE, "rows that the attempt has in the table measurements"),
)


def _metric_column(metric: Metric, where: str = "", prefix: str = "") -> Column:
    unit = f" [{metric.unit}]" if metric.unit else ""
    return Column(prefix + metric.name, NUMBER, f"{metric.meaning}{where}{unit}")


_OVER = "; mean over repeats and over the objective's load points"
_COUNTS = (
    "verify_steps", "correct_drafts", "output_tokens", "prompt_tokens", "requests_total", "requests_ok",
    "requests_failed",
)  # fmt: skip
_SUMMARY = tuple(
    _metric_column(metric, f"{_OVER}, not their sum" if metric.name in _COUNTS else _OVER)
    for metric in METRICS.values()
)
_RAW = tuple(
    Column(f"raw_{metric.name}", NUMBER, f"{metric.name} of an attempt that is not ok; never to be ranked")
    for metric in METRICS.values()
)
_FACTS = tuple(_metric_column(metric) for metric in TRIAL_FACTS.values())

TRIALS = (
    *_ORIGIN, *_OUTCOME, *NAMED_KNOBS.values(), *_SUMMARY, *_FACTS, *_CONFIGURATION, *_COURSE, *_RAW, *_IDENTITY,
)  # fmt: skip
MEASUREMENTS = (
    *_ORIGIN,
    Column("load_point", TEXT, "workload and concurrency, such as chat@8"),
    Column("workload", TEXT, "name of the workload"),
    Column("workload_digest", TEXT, "changes with any prompt or sampling setting"),
    Column("workload_kind", TEXT, "text, or random for prompts whose acceptance says nothing about real traffic"),
    Column("concurrency", WHOLE, "requests in flight"),
    Column("repeat", WHOLE, "number of the repeat within the launch, from 0"),
    Column("started_at", TIME, "start of the repeat"),
    Column("started_at_s", NUMBER, "start in seconds since the epoch"),
    *(_metric_column(metric) for metric in METRICS.values()),
    Column("accepted_histogram", COUNTS, "verify steps that accepted 0, 1, 2 … drafts"),
    Column("accept_source", TEXT, "where accept_length is from: requests (counted drafts), tokens, or none"),
    Column("specsearch_version", TEXT, "version of specsearch that wrote the row"),
    Column("schema_version", TEXT, "version of this table's columns"),
)
REQUESTS = (
    *_ORIGIN,
    Column("load_point", TEXT, "workload and concurrency, such as chat@8"),
    Column("repeat", WHOLE, "number of the repeat within the launch, from 0"),
    Column("request", WHOLE, "number of the request within the repeat, in the order of the prompts"),
    Column("started_s", NUMBER, "when it was sent, in seconds since the first request of the repeat"),
    Column("ttft_ms", NUMBER, "time to first token; null when none came"),
    Column("e2e_ms", NUMBER, "time to the last byte"),
    Column("chunk_ms", pa.list_(NUMBER), "arrival of each chunk since the request was sent"),
    Column("chunk_tokens", COUNTS, "tokens that had come with each chunk"),
    Column("prompt_tokens", WHOLE, "tokens of the prompt; null where the server does not tell"),
    Column("cached_tokens", WHOLE, "of those, answered from the prefix cache"),
    Column("completion_tokens", WHOLE, "tokens generated"),
    Column("verify_steps", WHOLE, "verify steps; null in plain decoding"),
    Column("correct_drafts", WHOLE, "accepted draft tokens"),
    Column("proposed_drafts", WHOLE, "proposed draft tokens"),
    Column("error", TEXT, "why the request failed; null for a good one"),
    Column("timed_out", SWITCH, "whether it ran into its time limit"),
    Column("degenerate", SWITCH, "whether the reply repeats itself"),
    Column("text_digest", TEXT, "16 hex digits over the reply: equal for equal replies; null where none came"),
    Column("specsearch_version", TEXT, "version of specsearch that wrote the row"),
    Column("schema_version", TEXT, "version of this table's columns"),
)
TABLES: Mapping[str, tuple[Column, ...]] = {"trials": TRIALS, "measurements": MEASUREMENTS, "requests": REQUESTS}


def arrow_schema(table: str) -> pa.Schema:
    """The explicit schema with which every part of a table is written, its version in the metadata."""
    fields = [pa.field(column.name, column.type) for column in TABLES[table]]
    return pa.schema(fields, metadata={VERSION_KEY: SCHEMA_VERSION.encode()})


def markdown(table: str) -> str:
    """The columns of a table as a Markdown table."""
    lines = ["| column | type | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{column.name}` | {_type_name(column.type)} | {column.meaning} |" for column in TABLES[table]]
    return "\n".join(lines)


def _type_name(kind: pa.DataType) -> str:
    return _TYPE_NAMES[str(kind)]


_TYPE_NAMES = {
    str(TEXT): "text",
    str(WHOLE): "int64",
    str(NUMBER): "double",
    str(SWITCH): "bool",
    str(TIME): "timestamp (UTC)",
    str(TEXTS): "list of text",
    str(COUNTS): "list of int64",
    str(pa.list_(NUMBER)): "list of double",
    str(TEXT_MAP): "map text → text",
    str(CAPTURES): "list of graphs",
}
