"""How the versions of SGLang differ from each other, wherever specsearch has to know.

Each switch was found by reading the sources of all 19 versions from 0.5.9 to 0.5.23.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from specsearch.engines.sglang.arguments.asked import is_false, is_true
from specsearch.search_space import PLAIN

OLDEST = "0.5.9"
NEWEST = "0.5.23"  # the newest version that was read and run

_EAGLE_FAMILY = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What holds from the version `since` on."""

    since: str
    graph_max_bs: str  # flag of the largest captured batch
    graph_bs: str  # flag of the captured batch sizes
    no_decode_graph: str | None  # flag that turns off the graphs of decoding alone
    algorithms: tuple[str, ...]
    takes_plugins: bool  # whether an algorithm may come from a plugin; else the parser refuses every other name
    overlap: str  # which of the EAGLE family overlap scheduling with computing by themselves: none, chains or all
    overlap_env: str | None  # a variable that, set to 1, turns it on for chains, or set to 0 off
    overlap_of_others: bool  # whether NGRAM, DFLASH and the rest overlap it
    tree_page_backends: tuple[str, ...]  # attention backends that verify a tree with pages larger than 1
    kept_free_gb: Mapping[str, float] = field(default_factory=dict)  # algorithm → memory left out of its pool
    overwritten_env: tuple[str, ...]  # variables that the server sets whatever it was given
    deterministic_env: tuple[str, ...]  # those that it sets with --enable-deterministic-inference
    correct_drafts: str  # the field of `meta_info` that counts accepted drafts
    histogram: str  # the one that counts verify steps by accepted drafts
    rate_counts_bonus: bool  # whether the log's accept rate counts the token that each step makes in any case
    stop_exit_code: int  # of a server that was asked to stop and was idle

    @property
    def chain_only_env(self) -> str | None:
        """A variable that, set to 1, allows top-k 1 only."""
        return self.overlap_env if self.overlap == "none" else None

    def overlaps(self, algorithm: str, top_k: int, environment: Mapping[str, str]) -> bool:
        """Whether a trial overlaps scheduling with computing if no flag turns it off; plain decoding always does."""
        if algorithm == PLAIN:
            return True
        if algorithm not in _EAGLE_FAMILY:
            return self.overlap_of_others
        switch = environment.get(self.overlap_env) if self.overlap_env else None
        if self.overlap == "none":
            return is_true(switch) and top_k == 1
        return not is_false(switch) and (self.overlap == "all" or top_k == 1)


_KEPT_FREE_GB = {**dict.fromkeys(("EAGLE", "EAGLE3", "NEXTN"), 2.0), "STANDALONE": 6.0}


_0_5_9 = Profile(
    since="0.5.9",
    graph_max_bs="cuda_graph_max_bs",
    graph_bs="cuda_graph_bs",
    no_decode_graph=None,
    algorithms=(*_EAGLE_FAMILY, "NGRAM"),
    takes_plugins=False,
    overlap="none",
    overlap_env="SGLANG_ENABLE_SPEC_V2",
    overlap_of_others=False,
    tree_page_backends=("flashinfer", "fa3"),
    kept_free_gb=_KEPT_FREE_GB,
    overwritten_env=("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"),
    deterministic_env=("NCCL_ALGO",),
    correct_drafts="spec_accept_token_num",
    histogram="spec_accept_histogram",
    rate_counts_bonus=True,
    stop_exit_code=-9,
)
_0_5_10 = replace(
    _0_5_9,
    since="0.5.10",
    kept_free_gb={**_KEPT_FREE_GB, "EAGLE": 4.0, "EAGLE3": 4.0, "NEXTN": 4.0},
)
_0_5_11 = replace(
    _0_5_10,
    since="0.5.11",
    algorithms=(*_0_5_10.algorithms, "DFLASH"),
    kept_free_gb={**_0_5_10.kept_free_gb, "DFLASH": 4.0},
    overlap="chains",
    correct_drafts="spec_accepted_drafts",
    rate_counts_bonus=False,
)
_0_5_12 = replace(
    _0_5_11,
    since="0.5.12",
    takes_plugins=True,
    correct_drafts="spec_num_correct_drafts",
    histogram="spec_correct_drafts_histogram",
)
_0_5_13 = replace(_0_5_12, since="0.5.13", overlap="all", tree_page_backends=("flashinfer", "fa3", "triton"))
_0_5_14 = replace(
    _0_5_13,
    since="0.5.14",
    graph_max_bs="cuda_graph_max_bs_decode",
    graph_bs="cuda_graph_bs_decode",
    no_decode_graph="disable_decode_cuda_graph",
    overlap_env=None,
    overlap_of_others=True,
    kept_free_gb={},
)
_0_5_16 = replace(_0_5_14, since="0.5.16", algorithms=(*_0_5_14.algorithms, "DSPARK"))
_0_5_18 = replace(_0_5_16, since="0.5.18", deterministic_env=("NCCL_ALGO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"))
_0_5_19 = replace(_0_5_18, since="0.5.19", overwritten_env=("CUDA_DEVICE_MAX_CONNECTIONS",), stop_exit_code=0)
_0_5_20 = replace(_0_5_19, since="0.5.20", algorithms=(*_0_5_19.algorithms, "UNO"))

PROFILES = (_0_5_9, _0_5_10, _0_5_11, _0_5_12, _0_5_13, _0_5_14, _0_5_16, _0_5_18, _0_5_19, _0_5_20)


def release(version: str) -> tuple[int, ...]:
    """The numbers a version starts with: 0.5.10.post1 → (0, 5, 10)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()


def is_known(version: str) -> bool:
    """Whether a version is one of those that were read; a build from source, which calls itself 0.0.0, is not."""
    return release(OLDEST) <= release(version) <= release(NEWEST)


def profile_of(version: str | None) -> Profile:
    """The profile of a version; that of the newest one where the version is not known."""
    numbers = release(version or NEWEST)
    if not any(numbers):
        numbers = release(NEWEST)
    known = [profile for profile in PROFILES if release(profile.since) <= numbers]
    return known[-1] if known else PROFILES[0]
