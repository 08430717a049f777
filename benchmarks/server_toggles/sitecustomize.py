"""Switches measuring options of a running SGLang server, so that one launch can be measured with and without each.

Two launches of one configuration differ by more than any of these options costs. Python imports this module in every
process of the server that `benchmarks/server_options.py` starts; it follows the file that SPECSEARCH_TOGGLES names and
answers in files beside it.
"""

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

SEARCH_S = 0.3  # before the server freezes its garbage collector, which then hides its objects
POLL_S = 0.05
REPORTER = "SchedulerMetricsReporter"
MANAGER = "TokenizerManager"


def follow(path: Path) -> None:
    """Apply what the file says whenever its sequence number changes."""
    while not (found := instances()):
        time.sleep(SEARCH_S)
    applied = None
    while True:
        time.sleep(POLL_S)
        try:
            wanted = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if wanted["sequence"] == applied:
            continue
        for name, instance in found.items():
            apply(name, instance, wanted)
            path.with_suffix(f".{name}").write_text(str(wanted["sequence"]))
        applied = wanted["sequence"]


def instances() -> dict[str, object]:
    """The objects of this process that hold the options."""
    if not any("metrics_reporter" in name or "tokenizer_manager" in name for name in sys.modules):
        return {}
    kinds = (REPORTER, MANAGER)
    return {type(thing).__name__: thing for thing in gc.get_objects() if type(thing).__name__ in kinds}


def apply(name: str, instance: object, wanted: dict[str, object]) -> None:
    """Set the options of one object; its names are those of SGLang 0.5.17 to 0.5.23."""
    if name == MANAGER:
        instance.enable_metrics = wanted["metrics"]  # type: ignore[attr-defined]
        instance.incremental_streaming_output = wanted["incremental"]  # type: ignore[attr-defined]
        return
    instance.current_scheduler_metrics_enabled = wanted["metrics"]  # type: ignore[attr-defined]
    instance.decode_log_interval = wanted["decode_log_interval"]  # type: ignore[attr-defined]
    sys.modules[type(instance).__module__].RECORD_STEP_TIME = wanted["step_time"]  # type: ignore[attr-defined]


if os.environ.get("SPECSEARCH_TOGGLES"):
    threading.Thread(target=follow, args=(Path(os.environ["SPECSEARCH_TOGGLES"]),), daemon=True).start()
