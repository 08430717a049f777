"""An interpreter that has some SGLang, made of text: metadata and the source of its arguments."""

import re
from collections.abc import Sequence
from pathlib import Path

from specsearch.engines.sglang.installed.reliances import NEEDLES

# The two ways in which SGLang declares flags: up to 0.5.9 by hand, later as annotated fields.
OLD_ARGUMENTS = """
class ServerArgs:
    model_path: str
    tp_size: int = 1

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", type=str)
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size)
        parser.add_argument("--cuda-graph-max-bs", type=int)
        parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
        parser.add_argument("--disable-cuda-graph", action="store_true")
        parser.add_argument("--attention-backend", type=str)
"""
NEW_FIELDS = """
import argparse
from typing import Optional

class Exec:
    _NS_PATH = "exec"
    model_path: A[str, Arg(help="The path.", aliases=["--model"])]
    tp_size: A[int, Arg(help="The size.", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    attention_backend: A[Optional[str], "The kernels." f"More."] = None
    cuda_graph_max_bs_decode: A[Optional[int], Arg(help="Decode.")] = None
    cuda_graph_max_bs_prefill: A[Optional[int], Arg(help="Prefill.")] = None
    cuda_graph_bs_decode: A[Optional[list[int]], "Sizes."] = None
    disable_cuda_graph: A[bool, Arg(help="", no_cli=True)] = False
    enable_tf32_matmul: A[bool, Arg(help="", action=argparse.BooleanOptionalAction)] = True
    mem_fraction_static: A[Optional[float], "Share."] = None
    num_continuous_decode_steps: A[int, "Steps."] = 1
    page_size: A[Optional[int], "Tokens."] = None
    enable_symm_mem: A[bool, "Symmetric."] = False
    speculative_algorithm: A[Optional[str], "Algorithm."] = None
    speculative_draft_model_path: A[Optional[str], Arg(help="Drafter.", aliases=["--speculative-draft-model"])] = None
    speculative_num_steps: A[Optional[int], "Depth."] = None
    speculative_eagle_topk: A[Optional[int], "Width."] = None
    speculative_num_draft_tokens: A[Optional[int], "Verified."] = None
    not_a_flag: int = 3
    nor_this: A[int, NS("exec")] = 3
"""
NEW_ARGUMENTS = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--disable-cuda-graph", action=DeprecatedStoreTrueAction)
"""


INERT = ("num_continuous_decode_steps",)


def install(
    folder: Path,
    version: str,
    *,
    arguments: str = NEW_ARGUMENTS,
    fields: str | None = NEW_FIELDS,
    lacks: Sequence[str] = (),
    unread: Sequence[str] = INERT,
) -> Path:
    """Lay an SGLang into a folder that is then given as PYTHONPATH; importing it would fail.

    It has what specsearch relies on, but for `lacks`, and reads every flag but `unread`.
    """
    package = folder / "sglang"
    fields_folder = package / "srt" / "arg_groups" / "fields"
    fields_folder.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('SGLang was imported')\n")
    (package / "srt" / "server_args.py").write_text(arguments)
    if fields is not None:
        (fields_folder / "exec_.py").write_text(fields)
    relied_on = [needle for needle in NEEDLES if needle not in lacks]
    flags = [needle[2:].replace("-", "_") for needle in relied_on if needle.startswith("--")]
    (fields_folder / "relied_on.py").write_text(
        "class More:\n" + "".join(f'    {name}: A[str, ""]\n' for name in flags)
    )
    words = set(re.findall(r"\w+", "\n".join((arguments, fields or "", *flags)))) - set(unread)
    texts = [repr(needle) for needle in relied_on if not needle.startswith("--")]
    (package / "srt" / "scheduler.py").write_text("\n".join([*(f"args.{word}" for word in sorted(words)), *texts]))
    if "launch_server.py" not in lacks:
        (package / "launch_server.py").write_text("")
    metadata = folder / f"sglang-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return folder
