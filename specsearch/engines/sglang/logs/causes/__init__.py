"""What is known to end a server: how the log says it, whose fault it is, and what to do.

Of the exceptions of one death the first cause of the table that fits any of them decides, so what is specific stands
before what is general. A text that SGLang prints as advice below every failed capture stands nowhere. Reasons and
their statuses are those of docs/errors.md.
"""

import re
from collections.abc import Iterator

from specsearch.engines.sglang.logs.causes._base import Cause
from specsearch.engines.sglang.logs.causes.arguments import ARGUMENTS
from specsearch.engines.sglang.logs.causes.communication import COMMUNICATION
from specsearch.engines.sglang.logs.causes.general import CAPTURE_FAILED, GENERAL, WARM_UP_FAILED
from specsearch.engines.sglang.logs.causes.host import HOST
from specsearch.engines.sglang.logs.causes.memory import MEMORY
from specsearch.engines.sglang.logs.causes.models import MODELS
from specsearch.engines.sglang.logs.lines import lines

__all__ = ["CAPTURE_FAILED", "CAUSES", "CONSEQUENCE", "WARM_UP_FAILED", "Cause", "statements"]

CAUSES = (*ARGUMENTS, *MEMORY, *HOST, *COMMUNICATION, *MODELS, *GENERAL)

# What the end of another process does to this one; no cause of its own.
CONSEQUENCE = re.compile(
    r"Connection (?:closed by peer|reset by peer|refused)|Broken pipe|ConnectionResetError|BrokenPipeError|EOFError|"
    r"KeyboardInterrupt|CancelledError|SystemExit|recvValue failed|failed to recv|Socket Timeout|DistStoreError|"
    r"NCCL communicator was aborted|remote process exited|RemoteDisconnected|Rank \d+ scheduler died|"
    r"could finish the model loading|Please see the error messages above|not reaped within|Fatal Python error: Aborted"
)

# Before the words: a level below error, of a logger, of torch (`[rank0]:[W1201`) or of NCCL, whose WARN is an error.
_NO_ERROR = re.compile(
    r"\b(?:DEBUG|INFO|WARNING)\b|(?<!NCCL )\bWARN\b|^(?:\[rank\d+\]:)?\s?\[?[WI]\d{4} |\b[Ww]arning: "
)


def statements(text: str) -> Iterator[tuple[Cause, re.Match[str]]]:
    """What lines other than exceptions say, by causes that any line may say; each cause where it is said first."""
    for cause in CAUSES:
        if cause.statement:
            match = next((one for one in cause.pattern.finditer(text) if _is_said(text, one.start(), cause)), None)
            if match:
                yield cause, match


def _is_said(text: str, position: int, cause: Cause) -> bool:
    """Whether a line says it of a death: a traceback's view of the source and a line of less than an error do not.

    SGLang's logger does not write its level, so that its lines count only for what it says of its own end.
    """
    start = text.rfind("\n", 0, position) + 1
    before = text[start:position]
    if before[:1].isspace() or _NO_ERROR.search(before):
        return False
    return cause.logged or before.startswith("[rank") or not [*lines(text[start : position + 1])][-1].is_logged
