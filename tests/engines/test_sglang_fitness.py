"""Everything that is said of engine, model, drafter and space before a launch."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from specsearch.config import EngineConfig
from specsearch.engines._base import Fitness
from specsearch.engines.sglang import SGLangEngine
from specsearch.engines.sglang.arguments.flags import argv_of, reserved_problem, value_problem
from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.engines.sglang.effective import canonical_settings, lesson
from specsearch.engines.sglang.fitness import Findings, examine_drafters, examine_values, examine_version
from specsearch.engines.sglang.installed.version import Installation
from specsearch.engines.sglang.logs.log import read_log
from specsearch.search_space import ChoiceParameter, Constraint, IntParameter, Parameter, SearchSpace
from specsearch.workload import LoadPoint, Workload
from tests.engines.contract import PLAIN, plan_of
from tests.engines.sglang_fakes import install

EAGLE3 = {"speculative_algorithm": ("EAGLE3",)}
CONFIG = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 4, "max_position_embeddings": 2048}
TARGET = {**CONFIG, "architectures": ["LlamaForCausalLM"]}
HEAD = {**CONFIG, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 512}


class Place:
    """A folder with a target, an EAGLE-3 head and an interpreter that has SGLang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target, self.head = self.model("target", TARGET), self.model("head", HEAD)

    def model(self, name: str, config: Mapping[str, object]) -> str:
        (self.folder / name).mkdir()
        (self.folder / name / "config.json").write_text(json.dumps(config))
        return str(self.folder / name)

    def engine(self, installed: str | None = "0.5.23", /, **changes: object) -> SGLangEngine:
        env = dict(changes.pop("env", {}))  # type: ignore[call-overload]
        if installed:
            packages = self.folder / "packages"
            env["PYTHONPATH"] = str(packages if packages.exists() else install(packages, installed))
        settings = {"type": "sglang", "model": self.target, "python": sys.executable, "env": env}
        return SGLangEngine(EngineConfig(**{**settings, **changes}))  # type: ignore[arg-type]

    def space(self, *more: Parameter, algorithms: tuple[str, ...] = ("none", "EAGLE3")) -> SearchSpace:
        return SearchSpace(
            (
                ChoiceParameter("speculative_algorithm", algorithms),
                ChoiceParameter("draft_model", (self.head,), EAGLE3),
                IntParameter("num_steps", 1, 3, when=EAGLE3),
                ChoiceParameter("eagle_topk", (1, 4), EAGLE3),
                IntParameter("num_draft_tokens", 2, 16, when=EAGLE3),
                *more,
            )
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def fitness(engine: SGLangEngine, space: SearchSpace, *, concurrency: int = 1, dry_run: bool = False) -> Fitness:
    return engine.fitness(space, (LoadPoint(Workload("chat", ("hi",)), concurrency),), dry_run=dry_run)


def test_a_fit_space_has_neither_errors_nor_warnings(place: Place) -> None:
    assert fitness(place.engine(), place.space()) == Fitness()


def test_the_installed_version_is_told_and_the_named_one_is_not_consulted(place: Place) -> None:
    engine = place.engine("0.5.17", version="0.5.23")
    assert engine.version() == "0.5.17"
    assert "0.5.23 is not consulted" in fitness(engine, place.space()).warnings[0]


def test_no_sglang_is_an_error_and_in_a_dry_run_a_warning(place: Place) -> None:
    engine = place.engine(None, version="0.5.17", env={"PYTHONPATH": str(place.folder)})
    assert engine.version() == "0.5.17"
    assert fitness(engine, place.space()).errors == (
        f"no SGLang is installed in {sys.executable}, which engine.python names; "
        "correct it, or give --engine-python PATH",
    )
    dry = fitness(engine, place.space(), dry_run=True)
    assert dry.errors == ()
    assert "spelled for 0.5.17" in dry.warnings[0]


def test_an_interpreter_that_does_not_exist_is_an_error_and_in_a_dry_run_a_warning(place: Place) -> None:
    engine = place.engine(None, python="/nowhere/bin/python")
    missing = "engine.python /nowhere/bin/python does not exist; correct it, or give --engine-python PATH"
    assert fitness(engine, place.space()).errors == (missing,)
    dry = fitness(engine, place.space(), dry_run=True)
    assert dry.errors == ()
    assert dry.warnings[0] == f"{missing}; flags are spelled for 0.5.23 and not checked"


def test_a_script_whose_own_interpreter_is_missing_is_not_said_to_be_missing(place: Place) -> None:
    script = place.folder / "python"
    script.write_text("#!/nowhere/sh\n")
    script.chmod(0o755)
    (error,) = fitness(place.engine(None, python=str(script)), place.space()).errors
    assert error == f"engine.python {script} cannot be started: No such file or directory"


def test_specsearchs_own_extra_is_named_only_where_no_interpreter_is() -> None:
    installed, ours, named = (Installation(None), EngineConfig("sglang", "m"), EngineConfig("sglang", "m", python="p"))
    found = {config: Findings() for config in ("ours", "named")}
    examine_version(found["ours"], installed, ours, "python3", dry_run=False)
    examine_version(found["named"], installed, named, "p", dry_run=False)
    assert "install specsearch[sglang], or name the interpreter" in found["ours"].errors[0]
    assert "specsearch[sglang]" not in found["named"].errors[0]


@pytest.mark.parametrize(("version", "sentence"), [("0.5.8", "older than 0.5.9"), ("0.4.6.post5", "older than 0.5.9")])
def test_a_version_that_is_too_old_is_an_error(place: Place, version: str, sentence: str) -> None:
    assert sentence in fitness(place.engine(version), place.space()).errors[0]


def test_a_version_newer_than_any_known_is_a_warning(place: Place) -> None:
    found = fitness(place.engine("0.6.1"), place.space())
    assert found.errors == ()
    assert "0.6.1 is not known" in found.warnings[0]


def test_a_moved_flag_is_an_error_that_names_what_it_could_mean(place: Place) -> None:
    """LF-06: written in the place of the named knob, the old spelling would end every launch with exit code 2."""
    moved = ChoiceParameter("cuda_graph_max_bs_d", (8, 16))
    found = fitness(place.engine(args={"mem_fraction_statc": 0.8}), place.space(moved))
    assert found.errors == (
        "engine.args.mem_fraction_statc: SGLang 0.5.23 has no flag --mem-fraction-statc; "
        "the nearest it has is --mem-fraction-static",
        "parameters.cuda_graph_max_bs_d: SGLang 0.5.23 has no --cuda-graph-max-bs-d, "
        "it could mean --cuda-graph-max-bs-decode; write one of them out",
    )


def test_the_named_knob_is_known_to_every_version(place: Place) -> None:
    """LF-06"""
    knob = ChoiceParameter("cuda_graph_max_bs", (8, 16))
    assert fitness(place.engine(), place.space(knob)).errors == ()


@pytest.mark.parametrize("name", ["port", "tensor_parallel_size", "weight_version", "use_ray"])
def test_a_flag_that_specsearch_gives_is_no_knob_and_cannot_be_pinned(place: Place, name: str) -> None:
    pinned = fitness(place.engine(args={name: "1"}), place.space()).errors[0]
    assert pinned.startswith(f"engine.args.{name} is set by specsearch")
    searched = fitness(place.engine(), place.space(ChoiceParameter(name, (1, 2)))).errors[0]
    assert searched.startswith(f"parameters.{name} is set")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("api_key", "k", "carry no key"),
        ("admin_api_key", "k", "carry no key"),
        ("ssl_certfile", "c.pem", "plain HTTP"),
        ("ssl_of_a_later_version", "x", "plain HTTP"),
        ("nccl_init_addr", "h:1", "one node"),
        ("log_level", "warning", "written at level info; write info or debug"),
        ("skip_tokenizer_init", True, "prompts are text"),
        ("disaggregation_mode", "prefill", "answers no request by itself; write null"),
        ("pp_size", 2, "a trial claims engine.tp_size GPUs"),
        ("pipeline_parallel_size", 2, "write pp_size"),
        ("data_parallel_size", 1, "write dp_size"),
        ("expert_parallel_size", 2, "write ep_size"),
    ],
)
def test_with_what_nothing_could_be_measured_is_neither_pinned_nor_searched(
    place: Place, name: str, value: bool | int | str, reason: str
) -> None:
    pinned = fitness(place.engine(args={name: value}), place.space()).errors
    assert any(said.startswith(f"engine.args.{name}") and reason in said for said in pinned), pinned
    searched = fitness(place.engine(), place.space(ChoiceParameter(name, (value, "unset")))).errors
    assert any(said.startswith(f"parameters.{name}") and reason in said for said in searched), searched


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_level", "debug"),
        ("log_level_http", "error"),
        ("skip_tokenizer_init", False),
        ("disaggregation_mode", "null"),
        ("pp_size", 1),
        ("skip_server_warmup", True),
    ],
)
def test_what_leaves_a_server_as_it_is_measured_may_be_pinned(name: str, value: bool | int | str) -> None:
    assert reserved_problem(name) is None
    assert value_problem(name, [value]) is None


def test_a_switch_that_is_on_by_itself_is_turned_off_where_the_version_is_known(place: Place) -> None:
    off = {"enable_tf32_matmul": False, "enable_symm_mem": False}
    words = plan_of(place.engine(args=off), PLAIN).argv
    assert "--no-enable-tf32-matmul" in words
    assert not {"--enable-tf32-matmul", "--enable-symm-mem", "--no-enable-symm-mem"} & set(words)
    assert "--no-enable-tf32-matmul" in plan_of(place.engine(args=off), PLAIN).serve()
    assert argv_of(off) == ()
    assert argv_of({"enable_tf32_matmul": True}, {"--no-enable-tf32-matmul"}) == ("--enable-tf32-matmul",)


def test_copies_of_the_model_on_gpus_that_no_trial_claims_can_never_run(place: Place) -> None:
    rules = SGLangRules("0.5.23", {"dp_size": 2}, tp_size=2)
    assert any("needs 2 times the GPUs" in said for said in rules.problems({}))
    within = SGLangRules("0.5.23", {"dp_size": 2, "enable_dp_attention": True}, tp_size=2)
    assert within.problems({}) == []


@pytest.mark.parametrize(
    ("name", "value"), [("env.HF_TOKEN", "hf_1"), ("env.HTTPS_PROXY", "http://me:hunter2@proxy:1")]
)
def test_a_secret_is_no_knob_and_is_not_repeated(place: Place, name: str, value: str) -> None:
    (error,) = fitness(place.engine(), place.space(ChoiceParameter(name, (value, "unset")))).errors
    assert error.startswith(f"parameters.{name}: a secret cannot be searched")
    assert value not in error


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("docker: Cannot connect to the Docker daemon.\n\nRun 'docker run --help' for more information", "daemon."),
        ("", "exit code 125"),
    ],
)
def test_a_container_program_that_fails_is_an_error_and_in_a_dry_run_a_warning(
    place: Place, said: str, heard: str
) -> None:
    docker = place.folder / "docker"
    docker.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 125\n")
    docker.chmod(0o755)
    engine = place.engine(None, python=None, command_prefix=(str(docker), "run", "{env}", "image"))
    (error,) = fitness(engine, place.space()).errors
    assert error.endswith(f"{heard}")
    dry = fitness(engine, place.space(), dry_run=True)
    assert dry.errors == ()
    assert dry.warnings[0] == f"{error}; flags are spelled for 0.5.23 and not checked"


def test_a_container_without_sglang_is_an_error(place: Place) -> None:
    engine = place.engine(None, command_prefix=("/usr/bin/env",), env={"PYTHONPATH": str(place.folder)})
    (error,) = fitness(engine, place.space()).errors
    assert error.startswith(f"no SGLang is installed in {sys.executable} behind engine.command_prefix")


def test_the_claimed_gpus_are_not_for_the_search_space_to_choose(place: Place) -> None:
    knob = ChoiceParameter("env.CUDA_VISIBLE_DEVICES", ("0", "1"))
    searched = fitness(place.engine(), place.space(knob)).errors[0]
    assert searched.startswith("parameters.env.CUDA_VISIBLE_DEVICES is set by specsearch")
    pinned = fitness(place.engine(env={"TMPDIR": "/x"}), place.space()).errors[0]
    assert pinned.startswith("engine.env.TMPDIR is set by specsearch")


def test_no_place_is_said_of_a_knob_that_may_stand_in_either_of_two(place: Place) -> None:
    """A pinned speculative knob is a parameter of one value, too."""
    fixed = ChoiceParameter("speculative_nonsense", (1,))
    assert fitness(place.engine(), place.space(fixed)).errors[0].startswith("speculative_nonsense: SGLang")
    searched = ChoiceParameter("speculative_nonsense", (1, 2))
    assert fitness(place.engine(), place.space(searched)).errors[0].startswith("parameters.speculative_nonsense: ")


def test_a_pinned_algorithm_and_the_long_name_of_a_knob_are_errors(place: Place) -> None:
    args = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3}
    errors = " / ".join(fitness(place.engine(args=args), place.space()).errors)
    assert "speculative_algorithm cannot be pinned" in errors
    assert "speculative_num_steps: write it as the named knob num_steps" in errors


def test_all_mistakes_are_reported_together(place: Place) -> None:
    engine = place.engine("0.5.8", model="/nowhere", args={"port": 1, "nonsense": 2})
    assert len(fitness(engine, place.space()).errors) == 4


def test_a_missing_model_file_is_an_error_and_in_a_dry_run_a_warning(place: Place) -> None:
    engine = place.engine(model="/nowhere/target")
    assert "engine.model /nowhere/target has no config.json" in fitness(engine, place.space()).errors[0]
    dry = fitness(engine, place.space(), dry_run=True)
    assert dry.errors == ()
    assert "/nowhere/target has no config.json" in dry.warnings[0]


def test_a_model_on_the_hub_that_was_never_downloaded_is_a_warning(place: Place) -> None:
    engine = place.engine(model="org/model", env={"HF_HUB_CACHE": str(place.folder)})
    found = fitness(engine, place.space())
    assert found.errors == ()
    assert "nothing about it is checked" in found.warnings[0]


def test_a_configuration_that_is_not_json_is_an_error(place: Place) -> None:
    (Path(place.target) / "config.json").write_text("<html>")
    assert "is not a JSON object" in fitness(place.engine(), place.space()).errors[0]


def test_an_algorithm_that_can_never_run_is_an_error_with_the_reason(place: Place) -> None:
    """SM-01: only the right name is left."""
    space = SearchSpace(
        tuple(
            ChoiceParameter(
                parameter.name, parameter.all_values() if parameter.name != "draft_model" else (place.head,)
            )
            for parameter in place.space(algorithms=("none", "EAGLE", "EAGLE3")).parameters
        )
    )
    (error,) = fitness(place.engine(), space).errors
    assert error.startswith("speculative_algorithm EAGLE can never run here")
    assert error.endswith("use EAGLE3")


def test_half_a_triple_is_refused_before_anything_starts(place: Place) -> None:
    """LF-21: the space of the case."""
    space = SearchSpace(
        (
            ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")),
            ChoiceParameter("num_draft_tokens", (4, 8, 16), EAGLE3),
        )
    )
    (error,) = fitness(place.engine(args={"draft_model": place.head}), space).errors
    assert "num_steps, eagle_topk missing" in error


def test_eagle3_without_a_drafter_is_refused_before_anything_starts(place: Place) -> None:
    """LF-13"""
    space = SearchSpace(tuple(p for p in place.space().parameters if p.name != "draft_model"))
    (error,) = fitness(place.engine(), space).errors
    assert "EAGLE3 needs a draft_model" in error


def test_a_value_that_no_point_can_have_is_a_warning_with_its_reason_once(place: Place) -> None:
    """LF-05: half of the space would die in seconds."""
    found = fitness(place.engine(args={"page_size": 64, "attention_backend": "fa4"}), place.space())
    assert found.errors == ()
    (warning,) = found.warnings
    assert warning.startswith("eagle_topk 4 can never run here: eagle_topk 4 with page_size 64")


def test_many_values_that_no_point_can_have_are_counted(place: Place) -> None:
    """LF-02"""
    small = [parameter for parameter in place.space().parameters if parameter.name not in ("num_steps", "eagle_topk")]
    steps, top_k = IntParameter("num_steps", 1, 2, when=EAGLE3), ChoiceParameter("eagle_topk", (1, 2), EAGLE3)
    (warning,) = fitness(place.engine(), SearchSpace((*small, steps, top_k))).warnings
    assert warning.startswith("num_draft_tokens 8, 9, 10, 11 and 5 more can never run here")


def test_a_space_without_a_single_point_is_an_error(place: Place) -> None:
    found = fitness(place.engine(), SearchSpace(place.space().parameters, (Constraint("1 > 2"),)))
    assert found.errors == ("no point of this space can run: the constraints exclude every point that could",)


def test_what_the_engine_ignores_is_named_with_the_reason(place: Place) -> None:
    """SM-03"""
    found = fitness(place.engine(), place.space(ChoiceParameter("num_continuous_decode_steps", (1, 2, 4, 8))))
    assert set(found.inert) == {"num_continuous_decode_steps"}
    assert "reads it nowhere" in found.inert["num_continuous_decode_steps"]


def test_what_the_engine_ignores_is_said_also_where_it_is_pinned(place: Place) -> None:
    """SM-03: the command that the search began with sets it to 4."""
    (warning,) = fitness(place.engine(args={"num_continuous_decode_steps": 4}), place.space()).warnings
    assert warning.startswith("num_continuous_decode_steps is pinned and changes nothing: SGLang parses this option")


def test_a_variable_that_the_engine_overwrites_is_no_knob(place: Place) -> None:
    """SM-08: the space of the case."""
    knob = ChoiceParameter("env.NCCL_NVLS_ENABLE", ("0", "1"))
    errors = fitness(place.engine(args={"enable_symm_mem": True}), place.space(knob)).errors
    assert errors == (
        "parameters.env.NCCL_NVLS_ENABLE cannot be searched: enable_symm_mem sets it to 1 whatever the server is given",
    )
    assert fitness(place.engine(), place.space(knob)).errors == ()


def test_a_variable_that_sglang_sets_where_it_is_unset_has_two_names_for_one_value(place: Place) -> None:
    knob = ChoiceParameter("env.NCCL_CUMEM_ENABLE", ("unset", "0", "1"))
    (warning,) = fitness(place.engine(), place.space(knob)).warnings
    assert "unset and 0 are one" in warning


@pytest.mark.parametrize("name", ["Custom allreduce", "custom all-reduce"])
def test_custom_all_reduce_that_turned_itself_off_is_part_of_what_really_runs(name: str) -> None:
    """On PCIe GPUs the kernel asked for is off, and a trial that asks for none runs the same."""
    text = (
        f"{name} is disabled because it's not supported on more than two PCIe-only GPUs. "
        "To silence this warning, specify disable_custom_all_reduce=True explicitly.\n"
    )
    log = read_log(text)
    assert log.settings == {"custom_all_reduce": "false"}
    asked_on = canonical_settings({"disable_custom_all_reduce": False}, log.settings)
    assert asked_on == canonical_settings({"disable_custom_all_reduce": True})
    assert lesson({"custom_all_reduce": True}, asked_on) == "not custom_all_reduce"
    assert lesson({"custom_all_reduce": False}, asked_on) is None


def test_graphs_too_small_for_the_load_are_a_warning(place: Place) -> None:
    """SM-06: beyond the largest captured batch decoding silently runs without a graph."""
    knob = ChoiceParameter("cuda_graph_max_bs", (32, 64, 128))
    (warning,) = fitness(place.engine(), place.space(knob), concurrency=64).warnings
    assert warning.startswith("cuda_graph_max_bs 32: batches of up to 64 requests")
    (pinned,) = fitness(place.engine(args={"cuda_graph_max_bs_decode": 8}), place.space(), concurrency=64).warnings
    assert pinned.startswith("cuda_graph_max_bs_decode 8:")


def test_a_drafter_that_is_stretched_beyond_its_context_is_a_warning(place: Place) -> None:
    """LF-14: the override lets it start and moves the crash to the long prompts."""
    long = place.model("long", {**TARGET, "max_position_embeddings": 8192})
    refused = fitness(place.engine(model=long), place.space())
    assert any("2048 tokens is shorter than the server's 8192" in error for error in refused.errors)
    allowed = place.engine(model=long, env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"})
    found = fitness(allowed, place.space())
    assert found.errors == ()
    assert "stretched to 8192" in found.warnings[0]


def test_an_algorithm_that_sglang_does_not_ship_is_a_warning(place: Place) -> None:
    found = fitness(place.engine(), place.space(algorithms=("none", "EAGLE3", "EAGLE9")))
    assert any("EAGLE9 is none that SGLang ships" in warning for warning in found.warnings)


def test_a_space_of_the_origin_storys_size_is_examined_in_seconds(place: Place) -> None:
    wide = SearchSpace(
        (
            ChoiceParameter("speculative_algorithm", ("none", "EAGLE3")),
            ChoiceParameter("draft_model", (place.head,), EAGLE3),
            IntParameter("num_steps", 1, 8, when=EAGLE3),
            ChoiceParameter("eagle_topk", (1, 2, 4, 8), EAGLE3),
            IntParameter("num_draft_tokens", 2, 64, when=EAGLE3),
            *(ChoiceParameter(f"env.NCCL_{name}", ("unset", "a", "b", "c")) for name in "PQRST"),
        )
    )
    assert wide.raw_size() > 4_000_000
    assert fitness(place.engine(), wide).errors == ()


def drafted(place: Place, *, algorithms: tuple[str, ...], drafters: tuple[str, ...], width: int = 1) -> SearchSpace:
    """A space of chains in which every algorithm may have every drafter, as large as asked for."""
    when = {"speculative_algorithm": tuple(name for name in algorithms if name != "none")}
    return SearchSpace(
        (
            ChoiceParameter("speculative_algorithm", algorithms),
            ChoiceParameter("draft_model", drafters, when),
            IntParameter("num_steps", 1, width, when=when),
            IntParameter("eagle_topk", 1, width, when=when),
            IntParameter("num_draft_tokens", 2, width + 1, when=when),
        )
    )


def test_drafters_for_several_algorithms_are_paired_and_the_pairs_told(place: Place) -> None:
    small = place.model("small", TARGET)
    space = drafted(place, algorithms=("none", "EAGLE3", "STANDALONE"), drafters=(place.head, small), width=2)
    rules, found = SGLangRules("0.5.23", model=place.target), Findings()
    examine_values(found, rules, space)
    assert found.errors == []
    (warning,) = [said for said in found.warnings if "pair" in said]
    assert warning.startswith(f"EAGLE3 with {place.head}; STANDALONE with {small} are proposed and no other pair")
    wrong = {"speculative_algorithm": "STANDALONE", "draft_model": place.head}
    assert any("use EAGLE3" in said for said in rules.problems(wrong))


@pytest.mark.parametrize("width", [2, 40])
def test_a_drafter_that_no_algorithm_of_the_space_can_run_is_an_error(place: Place, width: int) -> None:
    """Also where the space is too large to be listed."""
    small = place.model("small", TARGET)
    space = drafted(place, algorithms=("none", "EAGLE3"), drafters=(place.head, small), width=width)
    found = Findings()
    examine_values(found, SGLangRules("0.5.23", model=place.target), space)
    (error,) = found.errors
    assert error.startswith(f"draft_model {small} can never run here")
    assert error.endswith("use STANDALONE")


def test_an_algorithm_whose_condition_keeps_a_drafter_away_is_not_paired_with_it(place: Place) -> None:
    space = drafted(place, algorithms=("none", "EAGLE3"), drafters=(place.head,))
    with_ngram = SearchSpace(
        (ChoiceParameter("speculative_algorithm", ("none", "EAGLE3", "NGRAM", "EAGLE")), *space.parameters[1:])
    )
    found = Findings()
    examine_values(found, SGLangRules("0.5.23", model=place.target), with_ngram)
    assert not [said for said in found.warnings if "pair" in said], "EAGLE has no draft_model here"


def test_an_unchecked_drafter_is_a_warning_that_says_what_was_seen(place: Place) -> None:
    """SM-01: for a head that the check misjudges."""
    space = drafted(place, algorithms=("none", "EAGLE"), drafters=(place.head,))
    rules, found = SGLangRules("0.5.23", model=place.target, check_drafter=False), Findings()
    examine_drafters(found, rules, space, dry_run=False)
    examine_values(found, rules, space)
    assert found.errors == []
    (warning,) = found.warnings
    assert "the drafter is an EAGLE-3 head" in warning
    assert warning.endswith("(engine.check_drafter is false, so that it is launched all the same)")


def test_the_switch_of_the_file_reaches_the_rules(place: Place) -> None:
    assert place.engine().rules.check_drafter
    assert not place.engine(check_drafter=False).rules.check_drafter


def test_a_revision_that_was_never_downloaded_is_told(place: Place) -> None:
    cache = place.folder / "hub"
    found = Findings()
    rules = SGLangRules("0.5.23", {"revision": "v2"}, {"HF_HUB_CACHE": str(cache)}, "org/model")
    examine_drafters(found, rules, drafted(place, algorithms=("none",), drafters=()), dry_run=False)
    assert "at revision v2: nothing about it is checked" in found.warnings[0]


def test_on_one_gpu_the_all_reduce_is_not_searched(place: Place) -> None:
    knobs = (
        ChoiceParameter("custom_all_reduce", (True, False)),
        ChoiceParameter("env.NCCL_PROTO", ("unset", "LL"), {"custom_all_reduce": (False,)}),
    )
    one, eight = (fitness(place.engine(tp_size=size), place.space(*knobs)).inert for size in (1, 8))
    assert set(one) - set(eight) == {"custom_all_reduce", "env.NCCL_PROTO"}
    assert one["env.NCCL_PROTO"] == "nothing is reduced between GPUs: engine.tp_size is 1"


def test_the_backend_that_the_baseline_resolved_to_is_told_with_its_origin(place: Place) -> None:
    """LF-05: every tree of the space would die, and nobody wrote the backend down."""
    (said,) = place.engine().settled_warnings(place.space(), {"attention_backend": "trtllm_mha"})
    assert said.startswith("eagle_topk 4 can never run here: eagle_topk 4 with attention_backend trtllm_mha")
    assert said.count("as the baseline resolved it") == 1
    assert said.endswith("; search or pin another value to change that")
