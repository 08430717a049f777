"""What a known cause is."""

import re
from typing import NamedTuple

from specsearch.errors import TrialError


class Cause(NamedTuple):
    """One way in which a server is known to end."""

    pattern: re.Pattern[str]  # within the message of an exception
    reason: str
    error: type[TrialError]
    message: str
    advice: str
    frames: re.Pattern[str] | None = None  # within the innermost frames of the exception that began it all
    statement: bool = False  # any line says it, not only an exception
    logged: bool = False  # with `statement`: so does a line of SGLang's own logger
    starting: bool = False  # it can only end a server that was never ready
    symptom: bool = False  # whatever else is found explains more
    lesson: str = ""  # what no further point may be, as a constraint
    within: tuple[str, ...] = ()  # the knobs to whose values the lesson is bound
