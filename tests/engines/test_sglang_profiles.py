"""What profiles say of the versions of SGLang, against what these declare and what they made of commands."""

import asyncio
import itertools
import json
import os
from collections.abc import Mapping

import pytest
from aiohttp import ClientSession, web

from specsearch._search_space_file.names import KNOBS, canonical
from specsearch.engines.sglang.arguments.flags import flag_of, missing_problem, unknown_problem
from specsearch.engines.sglang.installed.profiles import (
    NEWEST,
    OLDEST,
    PROFILES,
    Profile,
    is_known,
    profile_of,
    release,
)
from specsearch.engines.sglang.installed.reliances import NEEDLES, RELIANCES, missing
from specsearch.engines.sglang.installed.version import installation, spelling
from specsearch.loadgen.client import GenerateRequest, generate
from specsearch.metrics import RequestRecord
from tests.engines import sglang_versions as versions
from tests.engines.sglang_versions import VERSIONS, declared

RESULTS: Mapping[str, Mapping[str, Mapping[str, object]]] = json.loads(versions.RESULTS.read_text())
every_version = pytest.mark.parametrize("version", VERSIONS)
GIB_OF_THE_PRETENDED_GPUS = 97887 / 1024


def resolved(version: str, command: str) -> Mapping[str, object]:
    """What a version made of a command."""
    settings = RESULTS[version][command]["resolved"]
    assert isinstance(settings, dict)
    return settings


def problem(version: str, command: str) -> str:
    """What a version said to a command; nothing where it took it."""
    return str(RESULTS[version][command].get("problem", ""))


@pytest.mark.real_sglang
def test_the_installed_parser_takes_the_commands_of_the_kimi_space_and_refuses_an_old_spelling() -> None:
    """LF-06"""
    python = os.environ.get("SPECSEARCH_SGLANG_PYTHON")
    if not python:
        pytest.skip("SPECSEARCH_SGLANG_PYTHON names no interpreter")
    version = installation(python).version
    assert version is not None
    commands = versions.kimi_commands(version)
    *answers, old = versions.parse(python, [*commands.values(), versions.QUESTIONS["old graph flag"]], [])
    for name, answer in zip(commands, answers, strict=True):
        assert "resolved" in answer, f"{name}: {answer.get('problem')}"
    assert old["parsed"] is False
    assert "ambiguous option: --cuda-graph-max-bs" in str(old["problem"])


def test_all_versions_from_the_oldest_to_the_newest_are_written_down() -> None:
    assert len(VERSIONS) == 19
    assert (VERSIONS[0], VERSIONS[-1]) == (OLDEST, NEWEST)
    assert set(RESULTS) == set(VERSIONS)


def test_profiles_stand_in_the_order_of_versions_and_each_differs_from_the_one_before() -> None:
    since = [release(profile.since) for profile in PROFILES]
    assert since == sorted(since)
    assert all(profile.since in VERSIONS for profile in PROFILES)
    for before, after in itertools.pairwise(PROFILES):
        assert {f for f in Profile.__slots__ if getattr(before, f) != getattr(after, f)} > {"since"}


@pytest.mark.parametrize(
    ("version", "numbers"), [("0.5.10.post1", (0, 5, 10)), ("0.5.24rc1", (0, 5, 24)), ("main", ()), ("0.6", (0, 6))]
)
def test_a_version_begins_with_its_release_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


@pytest.mark.parametrize("version", ["0.5.99", "0.5.24rc1", "0.0.0", "0.0.0.dev1+g12ab", "main", None])
def test_a_version_that_nobody_here_has_seen_is_taken_for_the_newest(version: str | None) -> None:
    assert profile_of(version) == profile_of(NEWEST)
    assert version is None or not is_known(version)


@every_version
def test_every_knob_is_a_flag_of_every_version_or_said_to_be_missing(version: str) -> None:
    """LF-06"""
    profile = profile_of(version)
    for knob in KNOBS:
        exists = spelling(flag_of(knob, profile)) in declared(version)
        assert exists is (missing_problem(knob, version, profile) is None), knob
        if exists:
            assert unknown_problem(knob, declared(version), version, profile) is None


@every_version
def test_the_commands_of_the_kimi_space_hold_declared_flags_only(version: str) -> None:
    """LF-06: no beginning of a flag, which another version may find ambiguous."""
    commands = versions.kimi_commands(version)
    assert len(commands) == 8 + (profile_of(version).no_decode_graph is not None)
    for name, command in commands.items():
        flags = {word for word in command if word.startswith("--")}
        assert flags <= declared(version), name


@every_version
def test_the_parser_of_every_version_took_the_commands_of_the_kimi_space(version: str) -> None:
    """LF-06: its real parser and its resolution, on pretended GPUs."""
    for name in versions.kimi_commands(version):
        assert "resolved" in RESULTS[version][name], f"{name}: {problem(version, name)}"
    assert resolved(version, "baseline")["speculative_algorithm"] is None
    seed = resolved(version, "seed point 1")
    assert [seed[f"speculative_{name}"] for name in ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")] == [
        *("EAGLE3", 3, 4, 16)
    ]
    assert seed["disable_custom_all_reduce"] is True
    assert resolved(version, "baseline, no graphs")["decode_graphs"] == "disabled"
    assert resolved(version, "seed point 1, no graphs")["decode_graphs"] == "disabled"


@every_version
def test_the_knobs_of_graphs_reach_the_captured_batches(version: str) -> None:
    sizes = resolved(version, "graphs up to 32")["decode_graphs"]
    assert isinstance(sizes, list)
    assert max(sizes) == 32
    assert resolved(version, "seed point 1, pinned")["decode_graphs"] == [1, 2, 4, 8, 16, 32]
    if profile_of(version).no_decode_graph:
        alone = resolved(version, "seed point 1, no decode graphs")
        assert (alone["decode_graphs"], alone["disable_cuda_graph"]) == ("disabled", False)


@every_version
def test_the_old_graph_flag_was_taken_until_it_was_gone(version: str) -> None:
    """LF-06"""
    if "--cuda-graph-max-bs" in declared(version):
        sizes = resolved(version, "old graph flag")["decode_graphs"]
        assert isinstance(sizes, list)
        assert max(sizes) == 8
    else:
        assert "ambiguous option: --cuda-graph-max-bs could match" in problem(version, "old graph flag")


@every_version
def test_speculation_overlaps_scheduling_where_the_profile_says_so(version: str) -> None:
    profile = profile_of(version)
    for command, algorithm, top_k in (
        ("plain", "none", 1),
        ("chain", "EAGLE3", 1),
        ("tree", "EAGLE3", 4),
        ("standalone", "STANDALONE", 1),
        ("ngram", "NGRAM", 1),
    ):
        overlaps = profile.overlaps(algorithm, top_k, {})
        assert resolved(version, command)["disable_overlap_schedule"] is not overlaps, command


@pytest.mark.parametrize(
    ("version", "switch", "chains", "trees"),
    [
        ("0.5.9", "1", True, False),
        ("0.5.10", "0", False, False),
        ("0.5.11", "0", False, False),
        ("0.5.11", "1", True, False),
        ("0.5.13", "false", False, False),
        ("0.5.13", "true", True, True),
        ("0.5.14", "0", True, True),
    ],
)
def test_a_variable_changes_the_overlap_only_where_the_version_reads_it(
    version: str, switch: str, chains: bool, trees: bool
) -> None:
    environment = {"SGLANG_ENABLE_SPEC_V2": switch}
    profile = profile_of(version)
    assert [profile.overlaps("EAGLE3", top_k, environment) for top_k in (1, 4)] == [chains, trees]


@every_version
def test_a_tree_in_pages_was_verified_by_the_backends_of_the_profile_alone(version: str) -> None:
    for backend in ("flashinfer", "fa3", "triton", "trtllm_mla"):
        taken = "resolved" in RESULTS[version][f"tree in pages, {backend}"]
        assert taken is (backend in profile_of(version).tree_page_backends), backend


@every_version
def test_the_memory_that_is_kept_free_for_a_drafter_is_that_of_the_profile(version: str) -> None:
    share = {name: resolved(version, name)["mem_fraction_static"] for name in ("plain", "chain", "standalone")}
    kept = profile_of(version).kept_free_gb
    for command, algorithm in (("chain", "EAGLE3"), ("standalone", "STANDALONE")):
        plain, speculative = share["plain"], share[command]
        assert isinstance(plain, float)
        assert isinstance(speculative, float)
        # A model with images has both shares scaled by the same factor, about 0.86 here.
        seen = (plain - speculative) * GIB_OF_THE_PRETENDED_GPUS
        assert seen == pytest.approx(kept.get(algorithm, 0.0), rel=0.16, abs=0.05), command


@every_version
def test_another_name_is_refused_by_the_parser_until_plugins_came(version: str) -> None:
    said = problem(version, "unknown algorithm")
    if profile_of(version).takes_plugins:
        assert said.startswith("ValueError: Unknown speculative algorithm name: NOSUCH")
        assert resolved(version, "small letters")["speculative_algorithm"] == "EAGLE3"
    else:
        told = set(said.partition("choose from ")[2].rstrip(")").replace("'", "").split(", "))
        assert told == set(profile_of(version).algorithms)
        assert "invalid choice: 'eagle3'" in problem(version, "small letters")


@every_version
def test_a_version_has_what_specsearch_relies_on(version: str) -> None:
    flags = {needle for needle in NEEDLES if needle.startswith("--")}
    assert not list(missing(version, flags - declared(version)))


def test_a_reliance_is_missing_when_all_its_spellings_are() -> None:
    (histogram,) = [reliance for reliance in RELIANCES if "histogram" in reliance.name]
    assert list(missing("0.5.9", histogram.any_of[1:])) == []
    assert list(missing("0.6.0", histogram.any_of)) == [histogram]


def test_what_came_later_is_not_missed_in_an_older_version() -> None:
    assert not list(missing("0.5.9", ["--incremental-streaming-output", "SGLANG_EXPOSE_OWN_ENV_VARS"]))
    assert len(list(missing("0.0.0", ["--incremental-streaming-output", "SGLANG_EXPOSE_OWN_ENV_VARS"]))) == 2


def test_the_only_flags_that_no_code_reads_are_these_six() -> None:
    """SM-03. Each was looked for by hand in the sources of every version."""
    seen: dict[str, list[str]] = {}
    for version in VERSIONS:
        for name in versions.unread(version):
            seen.setdefault(name, []).append(version)
    assert {name: (found[0], found[-1]) for name, found in seen.items()} == {
        "debug_tensor_dump_inject": ("0.5.9", "0.5.13.post1"),
        "file_storage_path": ("0.5.9", "0.5.21"),
        "num_continuous_decode_steps": ("0.5.9", "0.5.23"),
        "spec_trace_dir": ("0.5.15", "0.5.23"),
        "speculative_ngram_match_type": ("0.5.9", "0.5.9"),
        "triton_attention_reduce_in_fp32": ("0.5.11", "0.5.23"),
    }
    assert seen["num_continuous_decode_steps"] == list(VERSIONS)


@pytest.mark.parametrize(
    ("version", "name", "there"),
    [
        ("0.5.23", "stream_output", "incremental_streaming_output"),
        ("0.5.9", "incremental_streaming_output", "stream_output"),
        ("0.5.23", "disable_piecewise_cuda_graph", "cuda_graph_backend_prefill: disabled"),
        ("0.5.23", "nsa_decode_backend", "dsa_decode_backend"),
        ("0.5.12", "cuda_graph_bs_prefill", "piecewise_cuda_graph_tokens"),
    ],
)
def test_a_flag_of_another_version_is_told_by_the_name_it_has_here(version: str, name: str, there: str) -> None:
    """LF-06"""
    assert unknown_problem(name, declared(version), version, profile_of(version)) == (
        f"{name}: SGLang {version} has no flag {spelling(name)}; there it is {there}"
    )


def test_a_graph_flag_in_the_spelling_of_another_version_is_the_knob_that_every_version_has() -> None:
    """LF-06: the old flag where it is ambiguous, the new one where it is unknown."""
    for version, given in (("0.5.23", "cuda_graph_max_bs"), ("0.5.12", "cuda_graph_max_bs_decode")):
        assert canonical(given) == "cuda_graph_max_bs"
        assert spelling(flag_of("cuda_graph_max_bs", profile_of(version))) in declared(version)


async def answered(meta: Mapping[str, object]) -> RequestRecord:
    """The record of a request whose answer says this of itself."""

    async def stream(_: web.Request) -> web.Response:
        answer = {"text": "x", "output_ids": [1] * 12, "meta_info": {"completion_tokens": 12, **meta}}
        return web.Response(text=f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/generate", stream)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with ClientSession() as session:
            host, port = runner.addresses[0]
            request = GenerateRequest(prompt="x", output_tokens=12)
            return await generate(session, f"http://{host}:{port}", request, timeout_s=30)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.since)
def test_the_load_generator_reads_what_each_version_counts(profile: Profile) -> None:
    """ME-02"""
    told = {"spec_verify_ct": 5, profile.correct_drafts: 7, profile.histogram: [1, 2, 1, 1]}
    record = asyncio.run(answered(told))
    assert (record.verify_steps, record.correct_drafts, record.accepted_histogram) == (5, 7, (1, 2, 1, 1))
