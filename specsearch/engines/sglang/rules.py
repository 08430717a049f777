"""What SGLang fixes by itself, what it ignores and what it refuses, known before a launch.

A pinned argument counts as if every point had it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specsearch import speculation
from specsearch.engines.sglang import drafter as drafters
from specsearch.engines.sglang import pinning
from specsearch.engines.sglang.flags import ENV, environment_of
from specsearch.engines.sglang.version import Profile, profile_of
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Point, Value

TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")
_DEFAULTS: Mapping[str, Value] = {
    ALGORITHM: PLAIN,
    "cuda_graph": True,
    "custom_all_reduce": True,
    "num_continuous_decode_steps": 1,
}
_TRUE = ("1", "true", "yes", "on")
ALLOW_LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"

# Parsed, shown in the server info and read by no code in every version from 0.5.9 to 0.5.23.
INERT: Mapping[str, str] = {
    "num_continuous_decode_steps": "SGLang parses this option and reads it nowhere, in every version up to 0.5.23",
}
# A flag that is on → the variables the server then sets whatever it was given; None: to a value of its own choice.
_FORCED_BY_FLAG: Mapping[str, Mapping[str, str | None]] = {
    "enable_symm_mem": {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"},
    "enable_nccl_nvls": {"NCCL_NVLS_ENABLE": "1"},
    "enable_deterministic_inference": {"NCCL_ALGO": None, "NCCL_MIN_NCHANNELS": None, "NCCL_MAX_NCHANNELS": None},
}
# What the server sets where the variable is not set: unset is not NCCL's own default.
ENV_DEFAULTS: Mapping[str, str] = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


_GRAPH_BATCHES = ("cuda_graph_max_bs", "cuda_graph_bs")


@dataclass(frozen=True)
class SGLangRules:
    """The rules of one version, with what is pinned in every trial."""

    version: str | None = None  # None: the newest profile
    args: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    settled: Mapping[str, str] = field(default_factory=dict)  # what the baseline resolved to; `env.` before variables

    @property
    def profile(self) -> Profile:
        return profile_of(self.version)

    def requested(self, point: Point) -> dict[str, Value]:
        """Pinned arguments and the point together, the draft tokens of a chain filled in; `unset` stays."""
        merged = {**self.args, **point}
        tokens = self.derived("num_draft_tokens", merged)
        return merged if tokens is None else {**merged, "num_draft_tokens": tokens}

    def settings(self, point: Point) -> dict[str, Value]:
        """What is requested and what the baseline settled, without what is unset."""
        whole = {**pinning.flags(self.settled, self.profile, point, self.args), **self.requested(point)}
        return {name: value for name, value in whole.items() if value != UNSET}

    def settled_by(self, effective: Mapping[str, str]) -> "SGLangRules":
        return replace(self, settled=effective)

    def pins(self, point: Point) -> dict[str, Value]:
        flags = pinning.flags(self.settled, self.profile, point, self.args)
        forced = self.forced(self.settings(point))
        return {**flags, **pinning.variables(self.settled, {*self.requested_environment(point), *forced})}

    def requested_environment(self, point: Point) -> dict[str, str]:
        """Pinned variables and those of the point together; `unset` stays."""
        return {**self.env, **environment_of(point)}

    def environment(self, point: Point) -> dict[str, str]:
        """The variables a trial is given."""
        return {name: value for name, value in self.requested_environment(point).items() if value != UNSET}

    def derived(self, name: str, partial: Point) -> Value | None:
        """The draft tokens of a chain, which are always its steps and one; no graph batch where there are no graphs."""
        if name in _GRAPH_BATCHES and partial.get("cuda_graph", self.args.get("cuda_graph")) is False:
            return UNSET
        if name != "num_draft_tokens" or algorithm_of(partial) not in drafters.EAGLE_FAMILY:
            return None
        top_k, steps = (partial.get(knob, self.args.get(knob)) for knob in ("eagle_topk", "num_steps"))
        return steps + 1 if top_k == 1 and isinstance(steps, int) else None

    def default(self, name: str) -> Value | None:
        return _DEFAULTS.get(name)

    def problems(self, point: Point) -> Sequence[str]:
        settings = self.settings(point)
        found = list(self._forced_problems(settings, point))
        if algorithm_of(settings) in drafters.EAGLE_FAMILY:
            found += _triple_problems(settings)
            found += self._tree_problems(settings, self.environment(point))
        if algorithm_of(settings) in drafters.NEEDS_A_DRAFTER:
            found += self._drafter_problems(settings, self.environment(point))
        return found

    def forced(self, settings: Mapping[str, Value]) -> dict[str, tuple[str, str | None]]:
        """Variables that the server overwrites under these settings → (by what, with which value where it is fixed)."""
        forced: dict[str, tuple[str, str | None]] = dict.fromkeys(self.profile.overwritten_env, ("SGLang itself", None))
        for flag, variables in _FORCED_BY_FLAG.items():
            if settings.get(flag) is True:
                forced |= {name: (flag, value) for name, value in variables.items()}
        return forced

    def _forced_problems(self, settings: Mapping[str, Value], point: Point) -> Iterator[str]:
        requested = environment_of(point)
        for name, (culprit, value) in self.forced(settings).items():
            if requested.get(name, UNSET) not in (UNSET, value):
                outcome = f"to {value}" if value else "to a value of its own"
                yield f"{ENV}{name} {requested[name]} would have no effect: {culprit} sets it {outcome}; leave it unset"

    def _tree_problems(self, settings: Mapping[str, Value], environment: Mapping[str, str]) -> Iterator[str]:
        top_k = settings.get("eagle_topk")
        if not isinstance(top_k, int) or top_k <= 1:
            return
        backends = {
            str(settings[name])
            for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
            if name in settings
        }
        if "trtllm_mha" in backends:
            yield f"eagle_topk {top_k} with attention backend trtllm_mha, which verifies chains only: use eagle_topk 1"
        page, backend, allowed = (
            settings.get("page_size"),
            settings.get("attention_backend"),
            self.profile.tree_page_backends,
        )
        if isinstance(page, int) and page > 1 and backend is not None and backend not in allowed:
            yield (
                f"eagle_topk {top_k} with page_size {page} needs one of the attention backends {', '.join(allowed)}, "
                f"not {backend}: use one of them or page_size 1"
            )
        variable = self.profile.chain_only_env
        if variable and is_true(environment.get(variable)):
            yield f"eagle_topk {top_k} with {variable}=1: SGLang {self.version} verifies chains only with it"

    def _drafter_problems(self, settings: Mapping[str, Value], environment: Mapping[str, str]) -> Iterator[str]:
        algorithm = algorithm_of(settings)
        target = drafters.read_config(self.model, environment)
        model = settings.get("draft_model", settings.get("speculative_draft_model_path"))
        if model is None:
            if algorithm not in ("EAGLE", "NEXTN") or not drafters.bundles_a_drafter(target):
                yield f"{algorithm} needs a draft_model: without one SGLang takes the target as drafter and dies"
            return
        drafter = drafters.read_config(str(model), environment)
        if drafter is None:
            return
        yield from (
            f"draft_model {model}: {problem}" for problem in drafters.drafter_problems(algorithm, drafter, target)
        )
        short = drafters.short_context(drafter, target, context_length_of(settings))
        if short and not is_true(environment.get(ALLOW_LONGER_CONTEXT)):
            yield (
                f"draft_model {model}: its context of {short[0]} tokens is shorter than the server's {short[1]}; lower "
                f"context_length, or set {ALLOW_LONGER_CONTEXT}=1 where no request is longer than the drafter's context"
            )


def algorithm_of(settings: Mapping[str, Value]) -> str:
    """The algorithm in the upper case that SGLang gives it; `none` for plain decoding."""
    name = str(settings.get(ALGORITHM, PLAIN))
    return name if name == PLAIN else name.upper()


def context_length_of(settings: Mapping[str, Value]) -> int | None:
    """The context length that is asked for, or None."""
    length = settings.get("context_length")
    return length if isinstance(length, int) else None


def is_true(text: str | None) -> bool:
    """Whether SGLang takes the value of a variable for true."""
    return text is not None and text.lower() in _TRUE


def _triple_problems(settings: Mapping[str, Value]) -> Iterator[str]:
    given = [settings[name] for name in TRIPLE if isinstance(settings.get(name), int)]
    if settings.get("speculative_adaptive") is True or not given:
        return  # SGLang chooses all three
    if len(given) < len(TRIPLE):
        missing = ", ".join(name for name in TRIPLE if name not in settings)
        yield f"{missing} missing: SGLang wants num_steps, eagle_topk and num_draft_tokens together or none of them"
        return
    steps, top_k, tokens = (int(value) for value in given)
    problem = speculation.triple_problem(steps, top_k, tokens)
    if problem:
        yield problem
