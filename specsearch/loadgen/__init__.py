"""Puts the load of a load point on a server and says whether the numbers may be believed."""

from specsearch.loadgen.client import GenerateRequest, generate
from specsearch.loadgen.degenerate import is_degenerate
from specsearch.loadgen.gates import check_drafts, check_load_point, draft_context_warning, near_ceiling_warning
from specsearch.loadgen.generator import Repeat, measure_repeat, warm_up

__all__ = [
    "GenerateRequest",
    "Repeat",
    "check_drafts",
    "check_load_point",
    "draft_context_warning",
    "generate",
    "is_degenerate",
    "measure_repeat",
    "near_ceiling_warning",
    "warm_up",
]
