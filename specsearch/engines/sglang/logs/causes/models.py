"""Kernels and quantizations that the GPU lacks, and files of target and drafter."""

import re

from specsearch.engines.sglang.logs.causes._base import Cause
from specsearch.errors import FailedTrial, InfeasibleTrial

# Files of a checkpoint, by the names that transformers and SGLang look for; what kernels leave has other names.
_MODEL_FILE = (
    r"(?:(?:\w+_)?config\.json|(?:special_|added_)?token\w*\.(?:json|model)|(?:vocab|chat_template)\.json|merges\.txt|"
    r"[\w.-]+\.safetensors|[\w.-]+\.index\.json|(?:pytorch_model|consolidated|model)[\w.-]*\.(?:bin|pth?))"
)
_NO_FILES = (
    r"Repo id must be in the form|is not a local folder|is not a valid git identifier|"
    r"does not appear to have a file named|Cannot find any (?:model )?weights|RepositoryNotFound|"
    rf"No such file or directory: \W?(?:[^'\"\n]*/)?{_MODEL_FILE}(?![\w.])|shard file\(s\) missing|"
    r"instantiate the backend tokenizer|"
    r"Can't load (?:tokenizer|the configuration|(?:image|video) processor|feature extractor)"
)

MODELS = (
    Cause(
        re.compile(
            r"no kernel image is available|out of resource: |OutOfResources|device kernel image is invalid|"
            r"invalid device function|too many resources requested for launch"
        ),
        "kernel_unsupported",
        InfeasibleTrial,
        "a kernel of this configuration does not run on this kind of GPU",
        "Search another attention backend or quantization.",
        starting=True,
    ),
    Cause(
        re.compile(
            r"ninja: build stopped|Ninja build failed|Error building extension|'ninja', |nvcc (?:fatal|error)|"
            r"\bNVRTC_ERROR|CompilationError|PTXASError|ptxas (?:fatal|error)|InductorError|BackendCompilerFailed"
        ),
        "kernel_build_failed",
        InfeasibleTrial,
        "a kernel of this configuration could not be compiled here",
        "The compiler's own lines stand in the log; search another backend, or repair the toolkit.",
        starting=True,
    ),
    Cause(
        re.compile(
            r"quantization method \S+ is not supported for the current GPU|Unknown quantization method|"
            r"Invalid quantization method|is not supported for quantization method|not supported in ROCm|"
            r"Quantization method specified in the model config"
        ),
        "quantization_unsupported",
        InfeasibleTrial,
        "the quantization is not supported here, or is another than the checkpoint's",
        "Leave the quantization to the checkpoint, or take weights that this GPU can compute with.",
        starting=True,
    ),
    Cause(
        re.compile(r"same vocabulary as the target|target to share one vocab|d2t\b[^\n]*vocab"),
        "draft_mismatch",
        InfeasibleTrial,
        "the drafter's vocabulary is not the target's",
        "Take a drafter that was made for this target.",
        starting=True,
    ),
    Cause(
        re.compile(r"trust_remote_code=True|contains custom code which must be executed"),
        "unsupported_model",
        InfeasibleTrial,
        "the model brings code of its own, which is not trusted",
        "Read that code, then set trust_remote_code: true in engine.args.",
        starting=True,
    ),
    Cause(
        re.compile(
            r"are not supported for now|Unrecognized model |does not recognize this architecture|"
            r"failed to be inspected|Cannot find model module|Unrecognized configuration class"
        ),
        "unsupported_model",
        InfeasibleTrial,
        "this SGLang does not know the architecture of the target or of the drafter",
        "Another version of SGLang may; `architectures` of config.json names it.",
        starting=True,
    ),
    Cause(
        re.compile(r"gated repo|GatedRepo|401 Client Error|403 Client Error|Invalid user token"),
        "model_not_found",
        InfeasibleTrial,
        "the hub gives the model's files only to who is known to it",
        "Fetch the files beforehand, or give the server HF_TOKEN.",
        starting=True,
    ),
    Cause(
        re.compile(r"outgoing traffic has been disabled|offline mode is enabled"),
        "model_not_found",
        InfeasibleTrial,
        "the files of the target or of the drafter are not on this host, and the hub may not be asked",
        "Fetch the files beforehand, or unset HF_HUB_OFFLINE in engine.env.",
        starting=True,
    ),
    Cause(
        re.compile(
            r"couldn't connect to '\S+'|[Cc]heck your (?:internet )?connection|Temporary failure in name resolution|"
            r"LocalEntryNotFound|(?:429 Client|50\d Server) Error|"
            r"HTTPS?ConnectionPool\(host='[^']*(?:huggingface|hf|modelscope)[^']*'"
        ),
        "hub_unreachable",
        FailedTrial,
        "the hub was not reached, and the model's files are not on this host",
        "Fetch the files beforehand, or look at the node's network; a name that is wrong ends the same way.",
        starting=True,
    ),
    Cause(
        re.compile(_NO_FILES),
        "model_not_found",
        InfeasibleTrial,
        "the files of the target or of the drafter were not found",
        "Check engine.model and draft_model on the node that ran the trial.",
        starting=True,
    ),
    Cause(
        re.compile(
            r"SafetensorError|deserializing header|HeaderTooLarge|invalid load key|PytorchStreamReader|"
            r"UnpicklingError|is not a valid JSON file"
        ),
        "weights_unreadable",
        InfeasibleTrial,
        "a file of the target or of the drafter is damaged",
        "Was its download or copy cut short? Compare its size and checksum with the original.",
        starting=True,
    ),
    Cause(
        re.compile(r"object has no attribute '(?:hot_token_id|set_embed|set_embed_and_head|get_embed_and_head)'"),
        "missing_draft",
        InfeasibleTrial,
        "the model that was loaded as drafter is none: without a draft_model SGLang takes the target",
        "Name the drafter with draft_model.",
        starting=True,
    ),
    Cause(
        re.compile(r"\b\d+ is not divisible by \d+|must be divisible by|is not divisible by"),
        "arg_rejected",
        InfeasibleTrial,
        "a size of the model or of a setting cannot be divided as asked",
        "Take a tp_size (or ep_size, page_size) that divides it.",
        frames=re.compile(r"assert [^\n]*% [\w.]*tp_size|assert [^\n]*tp_size % "),
        starting=True,
    ),
    Cause(
        re.compile(
            r"Attempted to load weight|size mismatch for|shape mismatch|must match the size of tensor|"
            r"shapes cannot be multiplied|is invalid for input of size|Missing key\(s\)|size mismatch, got|"
            r"must match the existing size|exceeds dimension size|KeyError: '(?:\w+\.){2,}\w+'"
        ),
        "weights_mismatch",
        InfeasibleTrial,
        "weights do not have the shapes that the model expects",
        "Was the drafter made for this target, and does config.json belong to these weights?",
        # A comparison of shapes without words; whatever else goes wrong below load_weights is another matter.
        frames=re.compile(r"assert [^\n]*(?:loaded_weight|param)\w*\.(?:shape|size|numel)\b"),
        starting=True,
    ),
)
