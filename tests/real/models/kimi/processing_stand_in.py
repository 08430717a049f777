"""Stands in for the processor that comes with the checkpoint of Kimi-K2.5, which SGLang loads before any weight.

It brings the tokenizer of the folder and the sizes that SGLang asks for; no image is ever processed.
"""

from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer

SIZES = {
    "patch_size": 14,
    "merge_kernel_size": 2,
    "in_patch_limit": 16384,
    "patch_limit_on_one_side": 512,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


class StandInProcessor:
    """As much of a processor as starting a server takes."""

    image_processor = None
    media_processor = SimpleNamespace(media_proc_cfg=SIZES)

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def from_pretrained(cls, folder: str, **_: object) -> "StandInProcessor":
        return cls(AutoTokenizer.from_pretrained(folder))

    @classmethod
    def register_for_auto_class(cls, _: str = "AutoProcessor") -> None:
        """Nothing is ever saved, so nothing has to be registered."""
