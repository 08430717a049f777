"""The driver of the real SGLang.

engine.py      the engine as the rest of specsearch sees it: what is asked of it leads from there
installed/     which SGLang an interpreter has, how versions differ, what is relied on
arguments/     from a point to a command line: spelling, rules per algorithm, pins, measuring options, container words
models/        target and drafter on disk: what they are, whether they fit
fitness.py     what can be said before anything is launched
server.py      the HTTP surface of a running server
effective.py   what it really runs
logs/          facts from its log, and the cause of its death
"""

from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.engines.sglang.engine import SGLangEngine
from specsearch.engines.sglang.server import SGLangServer

__all__ = ["SGLangEngine", "SGLangRules", "SGLangServer"]
