"""The few numbers and names around a death that help to understand it: only what the log says."""

import re

from specsearch.engines.sglang.logs.captures import capture_under_way

CHILD = re.compile(
    r"Rank (?P<rank>\d+) scheduler died during initialization \(exit code: (?P<code1>-?\d+)\)"
    r"|Subprocess (?P<process>\S+) \(pid=\d+\) crashed with exit code (?P<code2>-?\d+)"
    r"|Scheduler or DataParallelController \d+ terminated with (?P<code3>-?[1-9]\d*)"
)
_SIZE = r"[\d.]+ ?(?:[KMGT]i?B|bytes)"
_FIRST: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("asked", re.compile(rf"[Tt]ried to allocate ({_SIZE})")),
    ("asked", re.compile(r"out of resource: [^\n]*Required: (\d+)")),
    ("available", re.compile(rf"of which ({_SIZE}) is free|; ({_SIZE}) free[;)]|[Aa]vailable memory[:=]? ({_SIZE})")),
    ("available", re.compile(r"Hardware limit: ?(\d+)")),
    ("total", re.compile(rf"total capacity of ({_SIZE})|; ({_SIZE}) total capacity")),
    ("gpu", re.compile(r"\b[GN]PU (\d+)(?: has a total|;)")),
    ("mem_fraction_static", re.compile(r"mem.fraction.static=(\d+(?:\.\d+)?)")),
    ("needed_mem_fraction_static", re.compile(r"--mem-fraction-static above (\d+(?:\.\d+)?)")),
    ("port", re.compile(r"\bport: (\d+)|\bat (\d+) is not available|\('[^']*', (\d+)\): |tcp://[^'\s]*:(\d+)")),
    ("file", re.compile(r"(?:No such file or directory|Permission denied|No space left on device|Read-only file system|"
                        r"Too many open files): b?'([^']+)'|(/dev/shm/[\w.-]+)|model weights with `([^`]+)`|"
                        r"'namespace/repo_name': '([^']+)'|PermissionError at (\S+)")),
    ("collective", re.compile(r"WorkNCCL\([^)]*OpType=(\w+)|available for function (\w+)")),
    ("datatype", re.compile(r"with datatype (\w+)")),
    ("limit", re.compile(r"watchdog_timeout=([\d.]+)|Timeout\(ms\)=(\d+)")),
    ("flag", re.compile(r"error: (?:unrecognized arguments|ambiguous option): (--[\w-]+)")),
    ("xid", re.compile(r"\bXid(?: \([^)]*\):)? (\d+)")),
)  # fmt: skip
_NCCL = re.compile(r"\b(NCCL_\w+) was set to (\S+?)[.,]?(?:\s|$)")
_RANK = re.compile(r"\b[Rr]ank (\d+)\]? (?:Watchdog|Process group)|\[rank(\d+)\]:")
_SHAPES = re.compile(r"torch\.Size\((\[[\d, ]*\])\)|tensor [ab] \((\d+)\)|\((\d+x\d+) and (\d+x\d+)\)")
_HOLDER = re.compile(rf"\bProcess (\d+) has ({_SIZE}) memory in use")
_FIRST_TOTAL = re.compile(rf"total capacity of ({_SIZE})")
_OF_TORCH = re.compile(rf"({_SIZE}) is (?:allocated by PyTorch|reserved by PyTorch)")
_POWER = {"K": 1, "M": 2, "G": 3, "T": 4}
# Contexts of the other ranks, and a tokenizer that prepares images, hold less; who holds more has no business there.
_FOREIGN_SHARE = 0.25
# What begins with a line that SGLang writes on its way up; the last before the death tells how far it was.
_MILESTONES: tuple[tuple[str, str], ...] = (
    ("Init torch distributed begin", "distributed"),
    ("Memory baseline taken", "distributed"),
    ("Load weight begin", "weights"),
    ("Load weight end", "kv_cache"),
    ("Memory pool end", "kv_cache"),
    ("graph end", "warm_up"),
    ("Started server process", "warm_up"),
    ("The server is fired up and ready to roll!", "serving"),
)


def facts_of(text: str, rank: str) -> dict[str, str]:
    """What a decisive message tells; `rank` is that of its prefix, for which the message itself may stand in."""
    facts: dict[str, str] = {}
    if not rank and (told := _RANK.search(text)):
        rank = told[1] or told[2]
    for name, pattern in _FIRST:
        if name not in facts and (match := pattern.search(text)):
            facts[name] = next(group for group in match.groups() if group)
    facts |= {match[1]: match[2] for match in _NCCL.finditer(text)}
    shapes = [group for match in _SHAPES.finditer(text) for group in match.groups() if group]
    if len(shapes) > 1:
        facts["shapes"] = " and ".join(shapes[:2])
    if child := CHILD.search(text):
        facts["exit_code"] = child["code1"] or child["code2"] or child["code3"]
        rank = rank or child["rank"] or ""
        if child["process"]:
            facts["process"] = child["process"]
    return ({"rank": rank} if rank else {}) | facts


def holder_of(text: str) -> tuple[str, str] | None:
    """Number and memory of the process that holds much of the GPU whose memory ran out, and is not the one that asked.

    In a container torch may not know its own number in the driver's list and then names itself as if it were another.
    """
    held = [(_bytes(size), process, size) for process, size in _HOLDER.findall(text)]
    total = _FIRST_TOTAL.search(text)
    if "this process has" not in text and (own := sum(_bytes(size) for size in _OF_TORCH.findall(text))):
        itself = min((one for one in held if one[0] >= own), default=None)  # contexts and NCCL come on top
        held = [one for one in held if one is not itself or one[0] > 2 * own]
    most, process, named = max(held, default=(0.0, "", ""))
    return (process, named) if total and most >= _FOREIGN_SHARE * _bytes(total[1]) else None


def _bytes(size: str) -> float:
    number, _, unit = size.partition(" ")
    return float(number) * 1024.0 ** _POWER.get(unit[:1], 0)


def phase_of_start(before: str, rank: str) -> str | None:
    """How far the start was (`weights`, `kv_cache`, `capture NAME`, `warm_up`, `serving`); None before all of them."""
    if capture := capture_under_way(before, rank):
        return f"capture {capture[0]}"
    reached = [(before.rfind(sign), name) for sign, name in _MILESTONES]
    position, name = max(reached)
    return name if position >= 0 else None
