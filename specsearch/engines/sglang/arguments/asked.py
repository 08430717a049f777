"""What one launch would be given, and what is known of its models: what the rules look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from specsearch.engines.sglang.models import checkpoint
from specsearch.engines.sglang.models.checkpoint import Config, Tensors
from specsearch.search_space import ALGORITHM, PLAIN, UNSET, Value

T = TypeVar("T")
# What SGLang's own reading of a variable takes for true and for false; other words end the launch.
_TRUE, _FALSE = ("1", "true", "yes", "y"), ("0", "false", "no", "n")


@dataclass(frozen=True)
class Files:
    """Models on this host, each read once; thousands of points have the same few."""

    environment: Mapping[str, str] = field(default_factory=dict)
    _configs: dict[tuple[str, str], Config | None] = field(default_factory=dict, repr=False)
    _tensors: dict[tuple[str, str], Tensors] = field(default_factory=dict, repr=False)

    def config(self, model: str, revision: object) -> Config | None:
        """The configuration of a model; None where it cannot be read."""
        key = (model, str(revision))
        if key not in self._configs:
            self._configs[key] = checkpoint.read_config(model, self.environment, revision)
        return self._configs[key]

    def tensors(self, model: str, revision: object) -> Tensors:
        """Names and shapes of a model's tensors, as far as they can be read."""
        key = (model, str(revision))
        if key not in self._tensors:
            self._tensors[key] = checkpoint.read_tensors(model, self.environment, revision)
        return self._tensors[key]


@dataclass(frozen=True)
class Asked:
    """The settings of a launch, those that are unset left out."""

    settings: Mapping[str, Value]
    environment: Mapping[str, str] = field(default_factory=dict)
    release: tuple[int, ...] = ()
    model: str = ""
    tp_size: int | None = None
    settled: frozenset[str] = frozenset()  # settings that nothing gives but what the baseline resolved to
    files: Files = field(default_factory=Files)

    @cached_property
    def algorithm(self) -> str:
        return algorithm_of(self.settings)

    @property
    def is_plain(self) -> bool:
        return self.algorithm == PLAIN

    def whole(self, name: str) -> int | None:
        """A whole number among the settings; None where it is absent or something else."""
        value = self.settings.get(name)
        return value if type(value) is int else None

    def text(self, name: str) -> str | None:
        """A text among the settings; None where it is absent or something else."""
        value = self.settings.get(name)
        return value if isinstance(value, str) else None

    def is_on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.settings.get(name) is True

    def said(self, name: str) -> str:
        """A setting as a sentence names it, with where its value comes from where nobody wrote it down."""
        origin = " (as the baseline resolved it)" if name in self.settled else ""
        return f"{name} {self.settings.get(name)}{origin}"

    @cached_property
    def backend(self) -> str | None:
        """The name of the setting that decides on the attention backend; None where it is left to SGLang.

        Two equal backends for prefill and decoding stand for the whole one as well.
        """
        prefill, decode = self.text("prefill_attention_backend"), self.text("decode_attention_backend")
        if prefill is not None and prefill == decode:
            return "prefill_attention_backend"
        return "attention_backend" if self.text("attention_backend") else None

    def phase_backend(self, phase: str) -> str | None:
        """The name of the setting that decides on the backend of `prefill` or `decode`."""
        name = f"{phase}_attention_backend"
        return name if self.text(name) else self.backend

    @property
    def draft_model(self) -> str | None:
        model = self.settings.get("draft_model", self.settings.get("speculative_draft_model_path"))
        return None if model is None else str(model)

    @cached_property
    def target(self) -> Config | None:
        """The target's configuration; None where it cannot be read."""
        return self.files.config(self.model, self.settings.get("revision"))

    @cached_property
    def drafter(self) -> Config | None:
        """The drafter's configuration; None where there is none or it cannot be read."""
        return None if self.draft_model is None else self.files.config(self.draft_model, self.draft_revision)

    @cached_property
    def tensors(self) -> Tensors:
        """Names and shapes of the drafter's tensors, as far as they can be read."""
        return {} if self.draft_model is None else self.files.tensors(self.draft_model, self.draft_revision)

    @property
    def drafting(self) -> Config | None:
        """The configuration of what drafts: of the drafter, or of the target where it brings its own."""
        return self.target if self.draft_model is None and self.algorithm in ("EAGLE", "NEXTN") else self.drafter

    @property
    def draft_revision(self) -> Value | None:
        return self.settings.get("speculative_draft_model_revision")

    @property
    def attention_dp(self) -> bool:
        """Whether attention is data-parallel, by either of the two spellings."""
        return (self.whole("attn_dp_size") or 1) > 1 or (
            self.is_on("enable_dp_attention") and (self.whole("dp_size") or 1) > 1
        )


def algorithm_of(settings: Mapping[str, Value]) -> str:
    """The algorithm in the upper case that SGLang gives it; `none` for plain decoding."""
    name = str(settings.get(ALGORITHM, PLAIN))
    return PLAIN if name in (PLAIN, UNSET) else name.upper()


def at_release(table: Sequence[tuple[tuple[int, ...], T]], release: tuple[int, ...]) -> T:
    """What holds in a version: the last entry that began by then, or the first."""
    known = [what for since, what in table if since <= release]
    return known[-1] if known else table[0][1]


def is_true(text: str | None) -> bool:
    """Whether SGLang takes the value of a variable for true."""
    return text is not None and text.lower() in _TRUE


def is_false(text: str | None) -> bool:
    """Whether SGLang takes the value of a variable for false."""
    return text is not None and text.lower() in _FALSE
