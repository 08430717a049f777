"""The driver of the real SGLang."""

from specsearch.engines.sglang.engine import SGLangEngine
from specsearch.engines.sglang.rules import SGLangRules
from specsearch.engines.sglang.server import SGLangServer

__all__ = ["SGLangEngine", "SGLangRules", "SGLangServer"]
