"""Facts from SGLang's log.

The log is written for people and changes with every version. So each field is looked for by itself, whatever
stands before, between or after: three styles of prefix, ranks, colours, extra fields and lines of several ranks
on one line are all met in practice.
"""

import re
from collections.abc import Iterator

from specsearch.engines._base import LogFacts
from specsearch.engines.sglang.logs.captures import captures
from specsearch.engines.sglang.logs.lines import rank_at, without_colours

READY = "The server is fired up and ready to roll!"

_BATCHES = re.compile(r"Decode batch\b[^\n]*")
_NEXT_BATCH = re.compile(r"(?=\b(?:Decode|Prefill) batch\b)")
_RUNNING = re.compile(r"#running-req: \d")
_QUEUED = re.compile(r"#queue-req: [1-9]")
_IN_GRAPH = re.compile(r" graph: (True|False)\b")  # cuda, cpu, npu, musa, xpu
_CONTEXT = re.compile(r"max_total_num_tokens=[^\n]{0,400}\bcontext_len=(\d+)")
_FREE_AT_START = re.compile(r"Load weight begin\.[^\n]{0,100}?avail mem=(\d+(?:\.\d+)?) GB")
# 0.5.9 writes `Custom allreduce`, later versions the name of the class.
_NO_CUSTOM_KERNEL = re.compile(
    r"[Cc]ustom ?[Aa]ll[- ]?[Rr]educe(?:V\d)? is disabled (?:because|due to)|Setup Custom allreduce failed"
)
_WEIGHTS = re.compile(r"Load weight end\.[^\n]{0,100}?\btype=(\w+)")
_EAGLE = re.compile(r"speculative_algorithm'?[=:] ?'(?:EAGLE|NEXTN)")
# After this line the server waits for ever, with its GPU memory.
_BIND = re.compile(r"error while attempting to bind on address")

_COLLECTIVE = re.compile(
    r"\b[NR]CCL (?:INFO|WARN|version)\b|Init torch distributed begin|Init parallel begin|is using nccl==|\[Gloo\] Rank"
)
_LAST_BYTES, _LAST_LINES = 4096, 2
# What the server changed or could not do and said so in passing.
_NOTES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"Max running requests is reset to (\d+)"),
        "the server limits itself to {0} running requests; set max_running_requests to compare like with like",
    ),
    (
        re.compile(r"(speculative_num_draft_tokens is adjusted to speculative_num_steps \+ 1)"),
        "the server replaced num_draft_tokens by num_steps + 1, since eagle_topk is 1",
    ),
    (re.compile(r"speculative_adaptive disabled: (.*)"), "the server turned adaptive speculation off: {0}"),
    (
        re.compile(r"Overriding the draft model's max_position_embeddings to (\d+)"),
        "the drafter runs beyond the context it was trained for, up to {0} tokens: long requests may be accepted badly",
    ),
    (
        re.compile(r"(Spec v1 is used for)"),
        "the server runs this tree without overlapped scheduling, unlike plain decoding",
    ),
)  # fmt: skip


def read_log(text: str) -> LogFacts:
    """Facts from a log of any supported version; None or nothing where it does not say."""
    text = without_colours(text)
    decode = [batch for batch in _decode_batches(text) if _RUNNING.search(batch)]
    told = [match.group(1) == "True" for match in map(_IN_GRAPH.search, decode) if match]
    captured = tuple(captures(text))
    seconds = [capture.seconds for capture in captured if capture.seconds is not None]
    return LogFacts(
        ready=READY in text,
        in_collective=_ends_in_collective(text),
        hopeless=_BIND.search(text) is not None,
        decode_lines=len(decode),
        decode_lines_in_graph=sum(told),
        decode_lines_that_tell=len(told),
        decode_lines_with_queue=sum(_QUEUED.search(batch) is not None for batch in decode),
        graph_capture_s=round(sum(seconds), 3) if seconds else None,
        captures=captured,
        memory_free_gb=_free_at_start_gb(text),
        settings=_settings(text),
        warnings=tuple(_notes(text)),
    )


def _ends_in_collective(text: str) -> bool:
    """Whether the last lines that say anything are NCCL's, or those that announce the groups of ranks."""
    last = [line for line in text[-_LAST_BYTES:].splitlines() if line.strip()][-_LAST_LINES:]
    return any(_COLLECTIVE.search(line) for line in last[-1:]) or (len(last) > 1 and "NCCL INFO" in last[-2])


def _decode_batches(text: str) -> Iterator[str]:
    """What each decode line says, two of them where two ranks wrote into one line."""
    for match in _BATCHES.finditer(text):
        line = match.group()
        if line.find(" batch", 12) < 0:
            yield line
        else:
            yield from (batch for batch in _NEXT_BATCH.split(line) if batch.startswith("Decode"))


def _settings(text: str) -> dict[str, str]:
    """What of the effective configuration only the log tells, by the names that knobs have."""
    settings = {}
    if context := _CONTEXT.search(text):
        settings["context_length"] = context[1]
    if _NO_CUSTOM_KERNEL.search(text):
        settings["custom_all_reduce"] = "false"
    return settings


def _free_at_start_gb(text: str) -> float | None:
    """GB that the fullest GPU had free when its first weights were about to be loaded; the drafter's come later."""
    first: dict[str, float] = {}
    for match in _FREE_AT_START.finditer(text):
        first.setdefault(rank_at(text, match.start()), float(match[1]))
    return min(first.values(), default=None)


def _notes(text: str) -> list[str]:
    notes = [note.format(*match.groups()) for pattern, note in _NOTES if (match := pattern.search(text))]
    by_rank: dict[str, list[str]] = {}
    for match in _WEIGHTS.finditer(text):
        by_rank.setdefault(rank_at(text, match.start()), []).append(match[1])
    models = max(by_rank.values(), key=len, default=[])
    if len(models) >= 2 and len(set(models)) == 1 and _EAGLE.search(text):
        notes.append(f"target and drafter are both {models[0]}: was the target loaded as its own drafter?")
    return notes
