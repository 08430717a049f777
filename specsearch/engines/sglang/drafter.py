"""Whether a drafter fits the target and the algorithm, read from the two `config.json` files.

SGLang itself says nothing of most mismatches: an EAGLE-3 head run as EAGLE starts, is slow and looks like a weak
drafter.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from specsearch.model_files import model_digest

Config = Mapping[str, object]

EAGLE_FAMILY = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
SHIPPED_ALGORITHMS = (*EAGLE_FAMILY, "NGRAM", "DFLASH", "DSPARK", "UNO")
NEEDS_A_DRAFTER = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH")

# Targets whose checkpoint holds its own drafter (multi-token prediction), which EAGLE takes when no other is named.
BUNDLES_A_DRAFTER = frozenset(
    {
        *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "Glm4MoeForCausalLM"),
        *("Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
        *("BailingMoeV2_5ForCausalLM", "MistralLarge3ForCausalLM", "PixtralForConditionalGeneration"),
        *("HYV3ForCausalLM", "HYV4ForCausalLM", "Qwen4ExpForConditionalGeneration"),
    }
)
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
# The keys in the order in which SGLang looks for a context length.
_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")


def config_path(model: str, environment: Mapping[str, str]) -> Path | None:
    """Where the `config.json` of a model lies: in its folder or in the local Hugging Face cache; None: nowhere."""
    local = Path(model).expanduser() / "config.json"
    if local.is_file():
        return local
    if not is_hub_id(model):
        return None
    repository = hub_cache(environment) / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    cached = repository / "snapshots" / revision / "config.json"
    return cached if cached.is_file() else None


def is_hub_id(model: str) -> bool:
    """Whether a model that is no local folder could be a name on the Hugging Face hub."""
    return _HUB_ID.fullmatch(model) is not None and not Path(model).expanduser().exists()


def hub_cache(environment: Mapping[str, str]) -> Path:
    """The folder in which Hugging Face keeps what it has downloaded."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        folder = environment.get(name) or os.environ.get(name)
        if folder:
            return Path(folder).expanduser() / below
    return Path.home() / ".cache" / "huggingface" / "hub"


def read_config(model: str, environment: Mapping[str, str]) -> Config | None:
    """The model's configuration with that of its language part on top; None where it cannot be read."""
    path = config_path(model, environment)
    return _parsed(path, path.stat().st_mtime_ns) if path else None


@cache
def _parsed(path: Path, modified_ns: int) -> Config | None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    language = config.get("text_config")
    return (
        {**config, **language, "architectures": config.get("architectures")} if isinstance(language, dict) else config
    )


def model_facts(role: str, model: str, revision: object, environment: Mapping[str, str]) -> dict[str, str]:
    """`ROLE.digest` of configuration and weights and `ROLE.revision`, as far as they can be told on this host."""
    path = config_path(model, environment)
    digest = model_digest(path.parent.absolute()) if path else None
    from_the_hub = path is not None and path.parent.parent.name == "snapshots"
    told = path.parent.name if path and from_the_hub else revision
    facts = {f"{role}.digest": digest, f"{role}.revision": told}
    return {name: str(value) for name, value in facts.items() if value is not None}


def missing_config(role: str, model: str, environment: Mapping[str, str]) -> str | None:
    """What keeps a model's configuration from being read, as a sentence; None where it was read."""
    path = config_path(model, environment)
    if path is None and is_hub_id(model):
        return f"{role} {model} is neither a folder nor in {hub_cache(environment)}: nothing about it is checked"
    if path is None:
        return f"{role} {model} has no config.json: is the path right, and is it visible on this host?"
    return None if read_config(model, environment) is not None else f"{role} {model}: {path} is not a JSON object"


def bundles_a_drafter(target: Config | None) -> bool:
    """Whether the target's checkpoint may hold its own drafter; True where the target is not known."""
    return target is None or any(name in BUNDLES_A_DRAFTER for name in _architectures(target))


def is_eagle3(drafter: Config) -> bool:
    """Whether a checkpoint is an EAGLE-3 head."""
    named = any("eagle3" in name.lower() for name in _architectures(drafter))
    return named or "draft_vocab_size" in drafter or bool(_aux_layers(drafter))


def drafter_problems(algorithm: str, drafter: Config, target: Config | None) -> Iterator[str]:
    """Why this drafter cannot serve this algorithm and target."""
    architecture = " ".join(_architectures(drafter)) or "unnamed architecture"
    if is_eagle3(drafter) and algorithm in ("EAGLE", "NEXTN", "STANDALONE"):
        yield (
            f"the drafter is an EAGLE-3 head ({architecture}), but speculative_algorithm is {algorithm}: SGLang would "
            "run it without an error and accept next to nothing; use EAGLE3"
        )
    elif algorithm == "EAGLE3" and not is_eagle3(drafter):
        yield (
            f"the drafter is no EAGLE-3 head ({architecture}), but speculative_algorithm is EAGLE3; "
            "use EAGLE or STANDALONE"
        )
    if target is not None and algorithm in EAGLE_FAMILY:
        yield from _size_problems(algorithm, drafter, target)
    draft_vocabulary, vocabulary = _number(drafter, "draft_vocab_size"), _number(drafter, "vocab_size")
    if draft_vocabulary and vocabulary and draft_vocabulary > vocabulary:
        yield f"the drafter's draft_vocab_size {draft_vocabulary} is larger than its vocab_size {vocabulary}"


def _size_problems(algorithm: str, drafter: Config, target: Config) -> Iterator[str]:
    ours, theirs = _number(drafter, "vocab_size"), _number(target, "vocab_size")
    if ours and theirs and ours != theirs:
        yield f"the drafter's vocab_size is {ours}, the target's {theirs}: it was made for another model"
    if algorithm == "STANDALONE":
        return
    expected = _number(drafter, "target_hidden_size") or _number(drafter, "hidden_size")
    hidden = _number(target, "hidden_size")
    if expected and hidden and expected != hidden:
        yield (
            f"the drafter reads hidden states of size {expected}, the target has {hidden}: "
            "it was made for another model"
        )
    layers = _number(target, "num_hidden_layers")
    if layers and any(layer >= layers for layer in _aux_layers(drafter)):
        yield f"the drafter reads layer {max(_aux_layers(drafter))} of the target, which has layers 0 to {layers - 1}"


def short_context(drafter: Config, target: Config | None, context_length: int | None) -> tuple[int, int] | None:
    """(the drafter's context length, the server's) where the drafter's is shorter, else None."""
    asked = context_length or (derived_context_length(target) if target else None)
    own = derived_context_length(drafter)
    return (own, asked) if own and asked and asked > own else None


def derived_context_length(config: Config) -> int | None:
    """The context length that SGLang derives from a configuration; None where the file leaves it to the model class."""
    scaling = config.get("rope_scaling")
    factor: object = 1
    if isinstance(scaling, dict) and "original_max_position_embeddings" not in scaling:
        factor = 1 if scaling.get("rope_type") == "llama3" else scaling.get("factor", 1)
    for key in _CONTEXT_KEYS:
        length = _number(config, key)
        if length is not None:
            return int(length * factor) if isinstance(factor, int | float) else length
    return None


def _architectures(config: Config) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _aux_layers(config: Config) -> list[int]:
    eagle = config.get("eagle_config")
    layers = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
    return [layer for layer in layers if isinstance(layer, int)] if isinstance(layers, list) else []


def _number(config: Config, key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
