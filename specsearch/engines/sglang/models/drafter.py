"""Whether a drafter fits the target and the algorithm, read from the files of both.

SGLang itself says nothing of most mismatches: an EAGLE-3 head run as EAGLE starts, is slow and looks like a weak
drafter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from specsearch.engines.sglang.models.checkpoint import Config, Tensors


class Kind(StrEnum):
    """What a drafter is, in words."""

    EAGLE3 = "an EAGLE-3 head"
    EAGLE = "an EAGLE head of the first or second kind"
    MTP = "a multi-token prediction head"
    ASSISTANT = "a Gemma 4 assistant"
    DFLASH = "a DFLASH drafter"
    DSPARK = "a DSPARK drafter"
    MEDUSA = "a set of Medusa heads"
    MODEL = "a whole model"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Drafter:
    """What a drafter is, and what says so."""

    kind: Kind
    evidence: str


# The kinds that each algorithm can run; any algorithm may run an unknown one.
_FITS: Mapping[str, tuple[Kind, ...]] = {
    "EAGLE": (Kind.EAGLE, Kind.MTP, Kind.ASSISTANT),
    "NEXTN": (Kind.EAGLE, Kind.MTP, Kind.ASSISTANT),
    "EAGLE3": (Kind.EAGLE3,),
    "STANDALONE": (Kind.MODEL, Kind.MTP),  # a model that has an MTP layer is a whole model as well
    "DFLASH": (Kind.DFLASH,),
    "DSPARK": (Kind.DSPARK, Kind.MTP),  # one checkpoint may hold both heads
}
_USE: Mapping[Kind, str] = {
    Kind.EAGLE3: "use EAGLE3",
    Kind.EAGLE: "use EAGLE",
    Kind.MTP: "use NEXTN",
    Kind.ASSISTANT: "use NEXTN",
    Kind.DFLASH: "use DFLASH",
    Kind.DSPARK: "use DSPARK",
    Kind.MEDUSA: "SGLang has no algorithm for it, use another drafter",
    Kind.MODEL: "use STANDALONE",
}
_SIZED = ("EAGLE", "NEXTN", "EAGLE3", "STANDALONE")

# Targets whose checkpoint holds a multi-token prediction head, which SGLang takes out of it when the checkpoint is
# named as the drafter; read from the versions 0.5.9 to 0.5.23.
HAS_AN_MTP_HEAD = frozenset(
    {
        *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM"),
        *("Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "GlmOcrForConditionalGeneration"),
        *("Glm5NextForConditionalGeneration", "LongcatFlashForCausalLM", "MiMoForCausalLM", "MiMoV2ForCausalLM"),
        *("MiMoV2FlashForCausalLM", "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration", "GigaChat35ForCausalLM"),
        *("InklingForConditionalGeneration", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
        *("BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM", "Ernie4_5_MoeForCausalLM", "Qwen3NextForCausalLM"),
        *("Qwen3MoeForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        *("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen4ExpForConditionalGeneration", "ExaoneMoEForCausalLM"),
        *("ExaoneMoeForCausalLM", "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "HYV3ForCausalLM"),
        *("NemotronH_Omni_Reasoning_V3", "HYV4ForCausalLM", "InternS2PreviewForConditionalGeneration"),
        *("InternS2MobiusForConditionalGeneration", "Dots3NoteForCausalLM", "MistralLarge3ForCausalLM"),
        "PixtralForConditionalGeneration",
    }
)
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")
_DSPARK_KEYS = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")
# Words in the name of an architecture, the more special ones first.
_WORDS: tuple[tuple[str, Kind], ...] = (
    ("eagle3", Kind.EAGLE3),
    ("dspark", Kind.DSPARK),
    ("dflash", Kind.DFLASH),
    ("medusa", Kind.MEDUSA),
    ("gemma4assistant", Kind.ASSISTANT),
    ("gemma4unifiedassistant", Kind.ASSISTANT),
    ("eagle", Kind.EAGLE),
    ("nextn", Kind.MTP),
    ("mtp", Kind.MTP),
)
_WHOLE_MODELS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
# Models with multi-head latent attention, by the beginnings of their architectures' names.
_MLA = (
    *("DeepseekV2", "DeepseekV3", "DeepseekVL2", "Eagle3Deepseek", "KimiK", "KimiVL", "KimiLinear", "Glm4MoeLite"),
    *(
        "GlmMoeDsa",
        "Glm5Next",
        "LongcatFlash",
        "HYV4",
        "DotsVLM",
        "Dots3Note",
        "MistralLarge3",
        "Pixtral",
        "GigaChat35",
    ),
    *("MiniCPM3", "BailingMoe", "SarvamMLA"),
)
# The keys in the order in which SGLang looks for a context length.
_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_DEFAULT_AUX_STATES = 3  # a low, a middle and a high layer of the target


def classify(config: Config, tensors: Tensors) -> Drafter:
    """What a drafter is, from its architecture's name, from keys of its configuration, from its weights."""
    named = _by_name(config)
    if named is not None and named.kind is not Kind.EAGLE:
        return named
    # The rest decides where the name does not, and where an EAGLE-3 head goes by the name of its predecessors.
    found = _by_weights(config, tensors) or _by_key(config) or named
    if found is not None:
        return found
    names = architectures(config)
    if has_an_mtp_head(config) or any((number(config, key) or 0) > 0 for key in _MTP_KEYS):
        return Drafter(Kind.MTP, told_architecture(config))
    whole = any(name.endswith(_WHOLE_MODELS) for name in names)
    return Drafter(Kind.MODEL if whole else Kind.UNKNOWN, told_architecture(config))


def _by_name(config: Config) -> Drafter | None:
    words = [name.lower().replace("_", "") for name in architectures(config)]
    for word, kind in _WORDS:
        if any(word in name for name in words):
            return Drafter(kind, told_architecture(config))
    return None


def _by_key(config: Config) -> Drafter | None:
    keys: list[tuple[Kind, tuple[str, ...]]] = [
        (Kind.DFLASH, ("dflash_config",)),
        (Kind.DSPARK, () if has_an_mtp_head(config) else _DSPARK_KEYS),  # a checkpoint may hold both heads
        (Kind.MEDUSA, ("medusa_num_heads", "medusa_num_layers")),
        (Kind.EAGLE3, ("draft_vocab_size", "num_aux_hidden_states")),
    ]
    for kind, names in keys:
        key = next((name for name in names if name in config), None)
        if key:
            return Drafter(kind, f"{told_architecture(config)} with {key}")
    return Drafter(Kind.EAGLE3, f"{told_architecture(config)} with aux layers") if aux_layers(config) else None


def _by_weights(config: Config, tensors: Tensors) -> Drafter | None:
    first = {name.partition(".")[0] for name in tensors}
    mapped = next((name for name in ("d2t", "t2d", "midlayer") if name in first), None)
    if mapped:
        return Drafter(Kind.EAGLE3, f"{told_architecture(config)}, but its weights hold {mapped}")
    if any("medusa" in name for name in first):
        return Drafter(Kind.MEDUSA, f"{told_architecture(config)} with Medusa weights")
    width, fusion = read_width(config), fusion_shape(tensors)
    if fusion is None or not width:
        return None
    kind = Kind.EAGLE3 if fusion[1] >= 3 * width else Kind.EAGLE
    return Drafter(kind, f"{told_architecture(config)} with an fc of {fusion[1]} inputs")


def mismatch(algorithm: str, drafter: Drafter) -> str | None:
    """Why an algorithm cannot run a drafter of this kind, or None."""
    fits = _FITS.get(algorithm)
    if fits is None or drafter.kind in (*fits, Kind.UNKNOWN):
        return None
    seen = f"the drafter is {drafter.kind} ({drafter.evidence})"
    if algorithm == "EAGLE3":
        seen = f"the drafter is no EAGLE-3 head but {drafter.kind} ({drafter.evidence})"
    outcome = ""
    if algorithm in ("EAGLE", "NEXTN") and drafter.kind in (Kind.EAGLE3, Kind.MODEL):
        outcome = ": SGLang would run it without an error and accept next to nothing"
    return f"{seen}, but speculative_algorithm is {algorithm}{outcome}; {_USE[drafter.kind]}"


def drafter_problems(algorithm: str, drafter: Config, tensors: Tensors, target: Config | None) -> Iterator[str]:
    """Why this drafter cannot serve this algorithm and target."""
    what = classify(drafter, tensors)
    wrong = mismatch(algorithm, what)
    if wrong:
        yield wrong
    if target is not None and algorithm in _SIZED:
        yield from _size_problems(algorithm, drafter, target)
    if what.kind is Kind.EAGLE3 and algorithm == "EAGLE3":
        yield from _fusion_problems(drafter, tensors, target)
    draft_vocabulary, vocabulary = number(drafter, "draft_vocab_size"), number(drafter, "vocab_size")
    if draft_vocabulary and vocabulary and draft_vocabulary > vocabulary:
        yield f"the drafter's draft_vocab_size {draft_vocabulary} is larger than its vocab_size {vocabulary}"


def _size_problems(algorithm: str, drafter: Config, target: Config) -> Iterator[str]:
    ours, theirs = number(drafter, "vocab_size"), number(target, "vocab_size")
    if ours and theirs and ours != theirs:
        yield f"the drafter's vocab_size is {ours}, the target's {theirs}: it was made for another model"
    if algorithm == "STANDALONE":
        return
    expected, hidden = read_width(drafter), number(target, "hidden_size")
    if expected and hidden and expected != hidden:
        yield (
            f"the drafter reads hidden states of size {expected}, the target has {hidden}: "
            "it was made for another model"
        )
    layers = number(target, "num_hidden_layers")
    if layers and any(layer >= layers for layer in aux_layers(drafter)):
        yield f"the drafter reads layer {max(aux_layers(drafter))} of the target, which has layers 0 to {layers - 1}"


def _fusion_problems(drafter: Config, tensors: Tensors, target: Config | None) -> Iterator[str]:
    """Does the head join as many hidden states as the target hands over?"""
    layers, states = aux_layers(drafter), number(drafter, "num_aux_hidden_states")
    handed_over = len(set(layers)) if layers else _DEFAULT_AUX_STATES
    joined = states if states is not None else len(layers) or _DEFAULT_AUX_STATES
    takes_them = eagle_config(drafter).get("use_aux_hidden_state", True) is not False
    if takes_them and joined != handed_over:
        named = f"layers {', '.join(map(str, layers))}" if layers else "three layers by default"
        yield f"the drafter joins {joined} hidden states, and the target hands over {handed_over} ({named})"
    width, fusion = read_width(drafter), fusion_shape(tensors)
    if fusion is not None and width:
        if takes_them and fusion[1] != width * joined:
            yield f"the drafter's fc has {fusion[1]} inputs, its configuration says {joined} states of {width}"
        if not takes_them and fusion[1] > width:
            yield (
                f"use_aux_hidden_state is false, and the drafter's fc joins {fusion[1] // width} hidden states: "
                "SGLang would leave fc out without an error and accept next to nothing"
            )
    mapped, vocabulary = tensors.get("d2t") or (), number(drafter, "draft_vocab_size")
    if mapped and vocabulary and mapped[0] != vocabulary:
        yield f"the drafter's d2t maps {mapped[0]} tokens, its draft_vocab_size is {vocabulary}"


def short_context(drafter: Config, target: Config | None, context_length: int | None) -> tuple[int, int] | None:
    """(the drafter's context length, the server's) where the drafter's is shorter, else None."""
    asked = context_length or (derived_context_length(target) if target else None)
    own = derived_context_length(drafter)
    return (own, asked) if own and asked and asked > own else None


def derived_context_length(config: Config) -> int | None:
    """The context length that SGLang derives from a configuration; None where the file leaves it to the model class."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    factor: object = 1
    if isinstance(scaling, dict) and "original_max_position_embeddings" not in scaling:
        factor = 1 if scaling.get("rope_type") == "llama3" else scaling.get("factor", 1)
    length = next((found for key in _CONTEXT_KEYS if (found := number(config, key)) is not None), None)
    if length is None or not isinstance(factor, int | float):
        return length
    try:
        return int(length * factor)
    except (OverflowError, ValueError):  # a factor that is no finite number
        return length


def is_mla(config: Config) -> bool:
    """Whether a model has multi-head latent attention, for which SGLang has attention backends of its own."""
    return number(config, "kv_lora_rank") is not None and any(n.startswith(_MLA) for n in architectures(config))


def smallest_draft_vocabulary(drafter: Config, tensors: Tensors) -> int | None:
    """How many tokens the drafter chooses among, where it is known to be a part of its vocabulary."""
    mapped = tensors.get("d2t") or ()
    return mapped[0] if mapped else number(drafter, "draft_vocab_size")


def bundles_dspark(config: Config) -> bool:
    """Whether a checkpoint holds a DSPARK head of its own."""
    return any(config.get(key) is not None for key in _DSPARK_KEYS)


def has_an_mtp_head(config: Config) -> bool:
    """Whether the target's checkpoint can be named as its own drafter."""
    return any(name in HAS_AN_MTP_HEAD for name in architectures(config))


def architectures(config: Config) -> list[str]:
    """The names of a model's classes."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def told_architecture(config: Config) -> str:
    """The names of a model's classes as one text."""
    return " ".join(architectures(config)) or "unnamed architecture"


def eagle_config(config: Config) -> Mapping[str, object]:
    """What an EAGLE-3 head says of the hidden states that it reads."""
    found = config.get("eagle_config")
    return found if isinstance(found, dict) else {}


def aux_layers(config: Config) -> list[int]:
    """The layers of the target that an EAGLE-3 head names; empty where it leaves them to SGLang."""
    layers = eagle_config(config).get("eagle_aux_hidden_state_layer_ids")
    return [layer for layer in layers if type(layer) is int] if isinstance(layers, list) else []


def read_width(drafter: Config) -> int | None:
    """The size of the hidden states that a head reads from the target."""
    return number(drafter, "target_hidden_size") or number(drafter, "hidden_size")


def fusion_shape(tensors: Tensors) -> tuple[int, int] | None:
    """(outputs, inputs) of the layer by which a head joins hidden states; None where it has none or is not readable."""
    shape = tensors.get("fc.weight") or tensors.get("model.fc.weight") or ()
    return (shape[0], shape[1]) if len(shape) == 2 else None


def number(config: Config, key: str) -> int | None:
    """A whole number of a configuration; None where it is absent or something else."""
    value = config.get(key)
    return value if type(value) is int else None
