"""Put command lines through the real argument parser and resolution of one SGLang, on GPUs that are pretended.

Run by an interpreter that can import that SGLang: command lines as a JSON list of lists on standard input, one line of
JSON for each on standard output, after MARK. `problem` is what SGLang says; `stand_ins` are modules that were missing.
"""

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import pathlib
import sys
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence

MARK = "parsed-by-sglang "
GIB = 2**30
SHOWN = (
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    *("attention_backend", "page_size", "max_running_requests", "mem_fraction_static", "disable_overlap_schedule"),
    *("disable_cuda_graph", "disable_custom_all_reduce"),
)


class Anything:
    """Takes the place of a compiled function or class that is imported and not called in earnest."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *given: object, **__: object) -> object:
        return given[0] if len(given) == 1 and callable(given[0]) else self  # as a decorator it changes nothing

    def __getattr__(self, name: str) -> "Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that hold anything; asked last, so that what is installed wins."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        known = any(name == known or name.startswith(f"{known}.") for known in self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = anything_of  # type: ignore[method-assign]
        module.__version__ = "999.0"  # type: ignore[attr-defined]


def anything_of(name: str) -> Anything:
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()


def pretend_gpus() -> None:
    """Eight GPUs of compute capability 12.0 with 96 GB each, as far as resolution looks."""
    import torch

    class Properties:
        name, total_memory, major, minor = "NVIDIA RTX PRO 6000 Blackwell Server Edition", 96 * GIB, 12, 0
        multi_processor_count, gcnArchName = 188, ""

    answers = {
        "is_available": True,
        "device_count": 8,
        "current_device": 0,
        "get_device_capability": (12, 0),
        "get_device_name": Properties.name,
        "get_device_properties": Properties(),
        "mem_get_info": (95 * GIB, 96 * GIB),
        "set_device": None,
        "is_initialized": False,
        "_lazy_init": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.version.cuda = "13.0"


def fill_gaps() -> None:
    """What neither the Python files of an older SGLang nor an environment made for a newer one hold."""
    import sgl_kernel
    import torch
    from transformers.models.auto import configuration_auto

    # Models that this SGLang brings along and that its newer transformers has by now.
    mapping = type(configuration_auto.CONFIG_MAPPING)
    register = mapping.register
    mapping.register = lambda self, key, value, exist_ok=False: register(self, key, value, exist_ok=True)
    sgl_kernel.__getattr__ = anything_of
    sgl_kernel.__path__ = []
    torch.library.register_fake = lambda *_, **__: Anything()  # of operators that only compiled kernels define
    exists = pathlib.Path.exists  # C++ sources lie beside the Python files
    pathlib.Path.exists = lambda self, **how: self.name in ("csrc", "include") or exists(self, **how)


def decode_graphs(told: Mapping[str, object]) -> object:
    """The batch sizes whose decoding is captured, in a word or two where there are none."""
    config = told.get("cuda_graph_config")
    if config is None:
        return "disabled" if told["disable_cuda_graph"] else told["cuda_graph_bs"]
    decode = config["decode"] if isinstance(config, dict) else vars(config.decode)
    return decode["bs"] if decode["backend"] == "full" else decode["backend"]


def answer(argv: Sequence[str]) -> dict[str, object]:
    """What SGLang makes of a command line."""
    from sglang.srt import server_args

    said = io.StringIO()
    try:
        parser = argparse.ArgumentParser(prog="sglang")
        server_args.ServerArgs.add_cli_args(parser)
        with contextlib.redirect_stderr(said):
            parser.parse_args(argv)
    except SystemExit:
        return {"parsed": False, "problem": said.getvalue().strip().splitlines()[-1]}
    try:
        made = server_args.prepare_server_args(argv)
        if hasattr(made, "resolve_once"):
            made.resolve_once()
        told = made.resolved_dict() if hasattr(made, "resolved_dict") else vars(made)
        shown = {name: told[name] for name in SHOWN if name in told}
        return {"parsed": True, "resolved": {**shown, "decode_graphs": decode_graphs(told)}}
    except ModuleNotFoundError as error:
        return {"parsed": True, "lacks": error.name}
    except Exception as error:  # noqa: BLE001 whatever SGLang raises is what is asked for
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{pathlib.Path(frame.filename).name}:{frame.lineno} {frame.name}"
        return {"parsed": True, "problem": f"{type(error).__name__}: {str(error)[:300]} ({place})"}


def apart(argv: Sequence[str], stand_ins: StandIns) -> dict[str, object]:
    """The answer of a process of its own: resolution leaves traces in the environment and in modules."""
    while True:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(write, "w") as pipe:
                json.dump({**answer(argv), "modules": list(sys.modules)}, pipe, default=str)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            told: dict[str, object] = json.loads(pipe.read() or '{"problem": "it ended without an answer"}')
        os.waitpid(child, 0)
        load(told.pop("modules", []))
        lacks = told.get("lacks")
        if not isinstance(lacks, str) or lacks in stand_ins.names:
            return {**told, "stand_ins": stand_ins.names}
        stand_ins.names.append(lacks)


def load(names: Sequence[str]) -> None:
    """What one answer has imported the next need not, which saves most of the time."""
    for name in names:
        if name.startswith(("sglang.", "transformers.")) and name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def main() -> None:
    warnings.simplefilter("ignore")
    pretend_gpus()
    fill_gaps()
    stand_ins = StandIns()
    sys.meta_path.append(stand_ins)
    importlib.import_module("sglang.srt.server_args")
    for argv in json.load(sys.stdin):
        sys.stdout.write(f"\n{MARK}{json.dumps(apart(argv, stand_ins))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
