"""Facts from SGLang's log.

The log is written for people and changes with every version. So each field is looked for by itself, whatever
stands before, between or after: three styles of prefix, ranks, colours, extra fields and lines of several ranks
on one line are all met in practice.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from specsearch.engines._base import LogFacts
from specsearch.trial import Capture

READY = "The server is fired up and ready to roll!"

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DECODE = re.compile(r"Decode batch\b.*?(?=Decode batch\b|Prefill batch\b|$)", re.MULTILINE)
_RUNNING = re.compile(r"#running-req: \d")
_QUEUED = re.compile(r"#queue-req: [1-9]")
_IN_GRAPH = re.compile(r"\b(?:cuda|cpu|npu|musa|xpu) graph: (True|False)\b")
_GRAPH = r"(?:(?P<name>[A-Za-z ]+?) )?(?:CUDA|cuda|CPU|cpu|NPU|npu|MUSA|musa|XPU|xpu) graph"
_CAPTURE = re.compile(rf"Capture {_GRAPH} (?P<event>begin|end)\b(?P<rest>.*)")
_CAPTURE_BEGIN = re.compile(rf"Capture {_GRAPH} begin\b(?:.*?avail mem=(?P<available>\d+(?:\.\d+)?) GB)?")
_CAPTURE_END = re.compile(rf"Capture {_GRAPH} end\b(?:.*?\belapsed[=:] ?(?P<seconds>\d+(?:\.\d+)?))?")
_SECONDS = re.compile(r"\belapsed[=:] ?(\d+(?:\.\d+)?)")
_TAKEN = re.compile(r"\bmem usage=(\d+(?:\.\d+)?) GB")
_AVAILABLE = re.compile(r"\bavail mem=(\d+(?:\.\d+)?) GB")
_SIZES = re.compile(r"\bbs=\[([\d, ]+)\]")
_CONTEXT = re.compile(r"\bmax_total_num_tokens=.*\bcontext_len=(\d+)")
_FREE_AT_START = re.compile(r"Load weight begin\..*?avail mem=(\d+(?:\.\d+)?) GB")
_NO_CUSTOM_KERNEL = re.compile(r"[Cc]ustom all.?reduce is disabled because")
_WEIGHTS = re.compile(r"Load weight end\..*?\btype=(\w+)")
_EAGLE = re.compile(r"speculative_algorithm'?[=:] ?'(?:EAGLE|NEXTN)")
_EXCEPTION = re.compile(
    r"^(?:\[[^\]]*\] )?(?:Exception: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Timeout))(?::|\s*$)"
)
# After this line the server waits for ever, with its GPU memory.
_BIND = re.compile(r"error while attempting to bind on address")

_NO_CUSTOM_ALL_REDUCE = (
    "custom all-reduce is off on these GPUs whatever is asked ({0}); pin custom_all_reduce: false in engine.args and "
    "take it out of the search"
)
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
    (
        re.compile(r"[Cc]ustom all.?reduce is disabled because (?:it's not supported on )?([^.\n]*)"),
        _NO_CUSTOM_ALL_REDUCE,
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
    decode = [line for line in _DECODE.findall(text) if _RUNNING.search(line)]
    told = [match.group(1) == "True" for match in map(_IN_GRAPH.search, decode) if match]
    return LogFacts(
        ready=READY in text,
        hopeless=_BIND.search(text) is not None,
        decode_lines=len(decode),
        decode_lines_in_graph=sum(told),
        decode_lines_that_tell=len(told),
        decode_lines_with_queue=sum(_QUEUED.search(line) is not None for line in decode),
        graph_capture_s=_graph_capture_s(text),
        captures=tuple(captures(text)),
        memory_free_gb=_free_at_start_gb(text),
        settings=_settings(text),
        warnings=tuple(_notes(text)),
    )


def without_colours(text: str) -> str:
    """The text without terminal colour codes."""
    return _COLOUR.sub("", text)


def captures(text: str) -> Iterator[Capture]:
    """The graphs that were captured to their end; of several ranks the slowest and the fullest count."""
    found: dict[str, Capture] = {}
    for line in _CAPTURE.finditer(text):
        name, rest = line["name"] or "decode", line["rest"]
        so_far = found.get(name, Capture(name))
        if line["event"] == "begin":
            sizes = _SIZES.search(rest)
            numbers = tuple(map(int, sizes[1].replace(",", " ").split())) if sizes else so_far.sizes
            found[name] = replace(so_far, available_gb=_least(_AVAILABLE, rest, so_far.available_gb), sizes=numbers)
        else:
            seconds, taken = (_most(_SECONDS, rest, so_far.seconds), _most(_TAKEN, rest, so_far.memory_gb))
            found[name] = replace(so_far, seconds=seconds, memory_gb=taken)
    under_way = capture_under_way(text)
    yield from (capture for name, capture in found.items() if under_way is None or under_way[0] != name)


def _most(pattern: re.Pattern[str], text: str, so_far: float | None) -> float | None:
    match = pattern.search(text)
    return max(float(match[1]), so_far or 0.0) if match else so_far


def _least(pattern: re.Pattern[str], text: str, so_far: float | None) -> float | None:
    match = pattern.search(text)
    if not match:
        return so_far
    return float(match[1]) if so_far is None else min(float(match[1]), so_far)


def _settings(text: str) -> dict[str, str]:
    """What of the effective configuration only the log tells, by the names that knobs have."""
    settings = {}
    if context := _CONTEXT.search(text):
        settings["context_length"] = context[1]
    if _NO_CUSTOM_KERNEL.search(text):
        settings["custom_all_reduce"] = "false"
    return settings


def _free_at_start_gb(text: str) -> float | None:
    """GB that the fullest GPU had free when its weights were about to be loaded; None when the log does not say."""
    found = [float(value) for value in _FREE_AT_START.findall(text)]
    return min(found) if found else None


def capture_under_way(text: str) -> tuple[str, float | None] | None:
    """(which graph, GB that were free) of the capture that began last and did not end; None when none is open."""
    begins = list(_CAPTURE_BEGIN.finditer(text))
    if not begins:
        return None
    name = begins[-1]["name"] or "decode"
    if any((end["name"] or "decode") == name for end in _CAPTURE_END.finditer(text, begins[-1].end())):
        return None
    available = begins[-1]["available"]
    return name, float(available) if available else None


def exception_line(text: str) -> str | None:
    """The exception that ended the server: the first that a scheduler hit, else the last of the log."""
    _, scheduler, after = text.partition("Scheduler hit an exception")
    lines = [line.strip() for line in (after if scheduler else text).splitlines()]
    found = [line for line in lines if _EXCEPTION.match(line)]
    return (found[0] if scheduler else found[-1]) if found else None


def exception_name(line: str) -> str:
    """`ValueError` of `ValueError: no such thing`."""
    match = _EXCEPTION.match(line)
    return match.group(1).rpartition(".")[2] if match else ""


def last_frame(text: str) -> str | None:
    """The innermost frame of the last traceback, such as `File "x.py", line 3, in f`."""
    frames = re.findall(r'File "[^"]+", line \d+, in \S+', text)
    return frames[-1] if frames else None


def line_with(text: str, position: int) -> str:
    """The line that holds a position of the text."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()


def _graph_capture_s(text: str) -> float | None:
    """Seconds of all captures; of the ranks that captured the same graph at the same time the slowest counts."""
    slowest: dict[str, float] = {}
    for end in _CAPTURE_END.finditer(text):
        if end["seconds"]:
            name = end["name"] or ""
            slowest[name] = max(slowest.get(name, 0.0), float(end["seconds"]))
    return round(sum(slowest.values()), 3) if slowest else None


def _notes(text: str) -> list[str]:
    notes = [note.format(*match.groups()) for pattern, note in _NOTES if (match := pattern.search(text))]
    models = _WEIGHTS.findall(text)
    if len(models) >= 2 and len(set(models)) == 1 and _EAGLE.search(text):
        notes.append(f"target and drafter are both {models[0]}: was the target loaded as its own drafter?")
    return notes
