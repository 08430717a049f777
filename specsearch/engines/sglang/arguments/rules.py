"""What SGLang fixes by itself, what it ignores and what it refuses, known before a launch.

A pinned argument counts as if every point had it, and so does what the baseline resolved to.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from specsearch.engines.sglang.arguments import algorithms, pinning, server_rules, tree_rules
from specsearch.engines.sglang.arguments.asked import Asked, Files, algorithm_of, is_true
from specsearch.engines.sglang.arguments.flags import ENV, environment_of, flag_of
from specsearch.engines.sglang.installed.version import NEWEST, Profile, profile_of, release, spelling
from specsearch.engines.sglang.models import drafter as drafters
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Point, Value

__all__ = ["ALLOW_LONGER_CONTEXT", "ENV_DEFAULTS", "SGLangRules", "algorithm_of", "context_length_of", "is_true"]

_DEFAULTS: Mapping[str, Value] = {
    ALGORITHM: PLAIN,
    "cuda_graph": True,
    "decode_cuda_graph": True,
    "custom_all_reduce": True,
    "num_continuous_decode_steps": 1,
}
ALLOW_LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_LARGEST = 2**31 - 1  # whole numbers beyond it fit in no field of a server

# Parsed, shown in the server info and read by no code in every version from 0.5.9 to 0.5.23.
INERT: Mapping[str, str] = {
    "num_continuous_decode_steps": "SGLang parses this option and reads it nowhere, in every version up to 0.5.23",
}
_NOTHING_TO_REDUCE = "nothing is reduced between GPUs: engine.tp_size is 1"
_MORE_GPUS = ("dp_size", "pp_size", "ep_size", "attn_dp_size")
# A flag that is on → the variables the server then sets, and to what.
_FORCED_BY_FLAG: Mapping[str, Mapping[str, str]] = {
    "enable_symm_mem": {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"},
    "enable_nccl_nvls": {"NCCL_NVLS_ENABLE": "1"},
}
# What the server sets where the variable is not set: unset is not NCCL's own default.
ENV_DEFAULTS: Mapping[str, str] = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}

# A switch that is off → the knobs that mean nothing then.
_MOOT_WITHOUT: Mapping[str, tuple[str, ...]] = {
    "cuda_graph": ("cuda_graph_max_bs", "cuda_graph_bs", "decode_cuda_graph"),
    "decode_cuda_graph": ("cuda_graph_max_bs", "cuda_graph_bs"),
}


@dataclass(frozen=True)
class SGLangRules:
    """The rules of one version, with what is pinned in every trial."""

    version: str | None = None  # None: the newest profile
    args: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    settled: Mapping[str, str] = field(default_factory=dict)  # what the baseline resolved to; `env.` before variables
    unread: frozenset[str] | None = None  # flags that the installed source declares and reads nowhere, where it is read
    tp_size: int | None = None  # None where it is not known
    check_drafter: bool = True  # whether a drafter that does not look as if it fitted is refused

    @cached_property
    def profile(self) -> Profile:
        return profile_of(self.version)

    @cached_property
    def release(self) -> tuple[int, ...]:
        """The numbers of the version; those of the newest one where it is not known."""
        numbers = release(self.version or NEWEST)
        return numbers if any(numbers) else release(NEWEST)

    def requested(self, point: Point) -> dict[str, Value]:
        """Pinned arguments and the point together, the draft tokens of a chain filled in; `unset` stays.

        What the algorithm does not read is left out of it.
        """
        merged = {**self.args, **point}
        for name in (*merged, "num_draft_tokens"):
            value = self._derived(name, merged)
            if value == UNSET and name in merged:
                merged[name] = UNSET
            elif value is not None and name == "num_draft_tokens":
                merged[name] = value
        return merged

    def settings(self, point: Point) -> dict[str, Value]:
        """What is requested and what the baseline settled, without what is unset."""
        return self._with_settled(point, self.requested(point))

    def _with_settled(self, point: Point, requested: Mapping[str, Value]) -> dict[str, Value]:
        whole = {**pinning.flags(self.settled, self.profile, point, self.args), **requested}
        return {name: value for name, value in whole.items() if value != UNSET}

    def settled_by(self, effective: Mapping[str, str]) -> "SGLangRules":
        return replace(self, settled=effective)

    def pins(self, point: Point) -> dict[str, Value]:
        flags = pinning.flags(self.settled, self.profile, point, self.args)
        forced = self.forced(self.settings(point))
        return {**flags, **pinning.variables(self.settled, {*self.requested_environment(point), *forced})}

    def pinnable(self) -> Sequence[str]:
        return pinning.names(self.args, {*self.env, *self.forced(self.settings({}))}, self.profile)

    def requested_environment(self, point: Point) -> dict[str, str]:
        """Pinned variables and those of the point together; `unset` stays."""
        return {**self.env, **environment_of(point)}

    def environment(self, point: Point) -> dict[str, str]:
        """The variables a trial is given."""
        return {name: value for name, value in self.requested_environment(point).items() if value != UNSET}

    def derived(self, name: str, partial: Point) -> Value | None:
        """What follows from the rest: the draft tokens of a chain, a switch that another one decides.

        `unset` is what has no meaning: a graph batch without graphs, a drafter of an algorithm that takes none.
        """
        return self._derived(name, {**self.args, **partial})

    def _derived(self, name: str, merged: Mapping[str, Value]) -> Value | None:
        if any(name in of and merged.get(knob) is False for knob, of in _MOOT_WITHOUT.items()):
            return UNSET
        if name in ("cuda_graph", "custom_all_reduce"):
            others = {knob: value for knob, value in merged.items() if value != UNSET}
            return server_rules.given_by_the_server(name, Asked(others, tp_size=self.tp_size))
        return algorithms.given_by_the_algorithm(name, merged, self.release)

    def why_inert(self, name: str) -> str | None:
        """Why a setting changes nothing in this version or on one GPU, or None."""
        if (name == "custom_all_reduce" or name.startswith(f"{ENV}NCCL_")) and self._is_on_one_gpu():
            return _NOTHING_TO_REDUCE
        flag = flag_of(name, self.profile)
        if self.unread is None or name.startswith(ENV):
            return INERT.get(name)
        if flag not in self.unread:
            return None
        return INERT.get(flag, f"SGLang {self.version} declares {spelling(flag)} and no code of it reads that")

    def _is_on_one_gpu(self) -> bool:
        return self.tp_size == 1 and all(self.args.get(name, 1) == 1 for name in _MORE_GPUS)

    def default(self, name: str) -> Value | None:
        return _DEFAULTS.get(name)

    def refusal(self, point: Point) -> str:
        asked = self.asked(point)
        if algorithms.missing_drafter(asked):
            return "missing_draft"
        return "draft_mismatch" if self.check_drafter and self._misfits(asked) else "infeasible_params"

    def asked(self, point: Point) -> Asked:
        """What a launch at this point would be given."""
        requested = self.requested(point)
        settings = self._with_settled(point, requested)
        settled = frozenset(name for name in settings if name not in requested)
        environment = self.environment(point)
        return Asked(settings, environment, self.release, self.model, self.tp_size, settled, self._files)

    @cached_property
    def _files(self) -> Files:
        return Files(self.env)

    def problems(self, point: Point) -> Sequence[str]:
        too_large = [name for name, value in {**self.args, **point}.items() if _is_too_large(value)]
        if too_large:
            return [f"{name} is beyond what a server takes, {_LARGEST}: use a smaller number" for name in too_large]
        asked = self.asked(point)
        found = [*self._forced_problems(asked, point), *server_rules.server_problems(asked)]
        if not asked.is_plain:
            found += algorithms.algorithm_problems(asked, self.profile.algorithms)
            found += server_rules.sampling_problems(asked)
        if asked.algorithm in algorithms.EAGLE_FAMILY:
            found += tree_rules.triple_problems(asked)
            found += tree_rules.tree_problems(asked, self.profile)
            found += tree_rules.draft_backend_problems(asked)
        if asked.algorithm in algorithms.NEEDS_A_DRAFTER:
            found += self._drafter_problems(asked)
        return list(dict.fromkeys(found))

    def forced(self, settings: Mapping[str, Value]) -> dict[str, tuple[str, str | None]]:
        """Variables that the server overwrites under these settings → (by what, with which value where it is fixed)."""
        forced: dict[str, tuple[str, str | None]] = dict.fromkeys(self.profile.overwritten_env, ("SGLang itself", None))
        for flag, variables in _FORCED_BY_FLAG.items():
            if settings.get(flag) is True:
                forced |= {name: (flag, value) for name, value in variables.items()}
        deterministic = server_rules.DETERMINISTIC
        if settings.get(deterministic) is True and self.tp_size != 1:
            forced |= dict.fromkeys(self.profile.deterministic_env, (deterministic, None))
        return forced

    def misfits(self, algorithm: str, model: str, revision: object = None) -> list[str]:
        """Why it does not look as if an algorithm could run a drafter for this target; told also where unchecked."""
        settings: dict[str, Value] = {**self.args, ALGORITHM: algorithm, "draft_model": model}
        if isinstance(revision, str):
            settings["speculative_draft_model_revision"] = revision
        return self._misfits(Asked(settings, self.env, self.release, self.model, files=self._files))

    def _misfits(self, asked: Asked) -> list[str]:
        key = (asked.algorithm, asked.draft_model, asked.draft_revision, asked.settings.get("revision"))
        if key not in self._known_misfits:
            self._known_misfits[key] = list(_misfits(asked))
        return self._known_misfits[key]

    @cached_property
    def _known_misfits(self) -> dict[tuple[object, ...], list[str]]:
        return {}

    def _forced_problems(self, asked: Asked, point: Point) -> Iterator[str]:
        requested = environment_of(point)
        for name, (culprit, value) in self.forced(asked.settings).items():
            if requested.get(name, UNSET) not in (UNSET, value):
                outcome = f"to {value}" if value else "to a value of its own"
                yield f"{ENV}{name} {requested[name]} would have no effect: {culprit} sets it {outcome}; leave it unset"

    def _drafter_problems(self, asked: Asked) -> Iterator[str]:
        missing = algorithms.missing_drafter(asked)
        if missing:
            yield missing
        if asked.drafter is None:
            return
        if self.check_drafter:
            yield from self._misfits(asked)
        yield from tree_rules.assistant_problems(asked)
        short = drafters.short_context(asked.drafter, asked.target, asked.whole("context_length"))
        if short and not is_true(asked.environment.get(ALLOW_LONGER_CONTEXT)):
            yield (
                f"draft_model {asked.draft_model}: its context of {short[0]} tokens is shorter than the server's "
                f"{short[1]}; lower context_length, or set {ALLOW_LONGER_CONTEXT}=1 where no request is longer than "
                "the drafter's context"
            )


def context_length_of(settings: Mapping[str, Value]) -> int | None:
    """The context length that is asked for, or None."""
    length = settings.get("context_length")
    return length if type(length) is int else None


def _misfits(asked: Asked) -> Iterator[str]:
    if asked.drafter is not None:
        for problem in drafters.drafter_problems(asked.algorithm, asked.drafter, asked.tensors, asked.target):
            yield f"draft_model {asked.draft_model}: {problem}"


def _is_too_large(value: object) -> bool:
    return type(value) is int and abs(value) > _LARGEST
