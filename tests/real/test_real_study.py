"""A whole study on the real SGLang: every algorithm that runs on a CPU, and a launch that fails at every stage.

Real here: command line, server, scheduler, drafting and verifying, meta_info, /server_info, teardown. Not real: speed.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.real.studies import ROOT, SECRET, Study, is_listened_on, needs_sglang

pytestmark = [pytest.mark.real_sglang, needs_sglang]

# What a trial is pinned to where neither the file nor its point says it.
PINNED = {"context_length", "chunked_prefill_size", "page_size", "random_seed", "mem_fraction_static"}
DRAFTING = ("EAGLE3", "STANDALONE", "EAGLE")


def measured(study: Study) -> list[dict[str, Any]]:
    return study.trials_of(status="ok")


def speculative(study: Study) -> list[dict[str, Any]]:
    return [row for row in measured(study) if row["speculative_algorithm"] != "none"]


def accept_length(study: Study, **wanted: object) -> float:
    row = study.trial_of(kind="seed", status="ok", **wanted)
    return float(row["accept_length"])


def replies(study: Study, trial: int) -> dict[tuple[str, int, int], tuple[str, int]]:
    """(load point, repeat, request) → (digest of the reply, tokens)."""
    rows = [row for row in study.table("requests") if row["trial"] == trial]
    return {
        (row["load_point"], row["repeat"], row["request"]): (row["text_digest"], row["completion_tokens"])
        for row in rows
    }


def test_the_study_ends_with_a_verdict(study: Study) -> None:
    assert study.exit_code == 0, study.output
    assert "sglang.launch_server" in study.output  # the launch command, ready to paste


def test_the_report_reads_what_the_study_stored(study: Study) -> None:
    command = [sys.executable, "-m", "specsearch.report", str(study.folder)]
    report = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert report.returncode == 0, report.stderr
    assert f"{len({row['trial'] for row in study.trials})} proposed" in report.stdout


def test_the_baseline_is_plain_decoding_and_was_measured(study: Study) -> None:
    assert study.baseline["status"] == "ok"
    assert study.baseline["speculative_algorithm"] == "none"
    assert study.baseline["output_tokens_per_s"] > 0
    assert study.baseline["accept_length"] is None


def test_every_algorithm_that_runs_on_a_cpu_was_measured_as_chain_and_tree(study: Study) -> None:
    found = {(row["speculative_algorithm"], row["eagle_topk"]) for row in speculative(study)}
    assert found >= {("EAGLE3", 1), ("EAGLE3", 4), ("STANDALONE", 1), ("NGRAM", None), ("EAGLE", 1)}


def test_drafts_are_accepted_as_often_as_such_a_drafter_is_good(study: Study) -> None:
    """Trained drafters are accepted, a tree more often than a chain, and a head of random weights hardly ever."""
    chain = accept_length(study, draft_model="/eagle3", eagle_topk=1)
    assert chain > 1.5
    assert accept_length(study, draft_model="/eagle3", eagle_topk=4) > chain
    assert accept_length(study, speculative_algorithm="STANDALONE") > 1.5
    assert accept_length(study, speculative_algorithm="NGRAM") > 1.5
    assert accept_length(study, draft_model="/eagle-random") < 1.2


def test_the_counts_of_accepted_drafts_are_the_requests_own(study: Study) -> None:
    trials = {row["trial"] for row in speculative(study)}
    repeats = [row for row in study.table("measurements") if row["trial"] in trials]
    assert {row["accept_source"] for row in repeats} == {"requests"}


def test_speculation_gives_the_tokens_of_plain_decoding(study: Study) -> None:
    """In fp32 and at temperature 0 every algorithm is lossless, to the last token of every reply."""
    wanted = replies(study, study.baseline["trial"])
    assert len({digest for digest, _ in wanted.values()}) == 6, "every prompt has a reply of its own"
    assert {tokens for _, tokens in wanted.values()} == {64}
    for row in speculative(study):
        assert replies(study, row["trial"]) == wanted, row["name"]


def test_the_server_ran_the_draft_tree_that_was_asked_for(study: Study) -> None:
    rows = [row for row in speculative(study) if row["speculative_algorithm"] in DRAFTING]
    asked = {row["trial"]: (row["num_steps"], row["eagle_topk"], row["num_draft_tokens"]) for row in rows}
    assert {row["trial"]: effective_triple(row) for row in rows} == asked
    assert all(row["overridden"] == [] for row in measured(study))


def test_ngram_runs_the_steps_and_branches_that_sglang_gives_it(study: Study) -> None:
    """It is asked for draft tokens only: the breadth of its search counts as top-k, and its steps are 8 // 10."""
    assert effective_triple(study.trial_of(speculative_algorithm="NGRAM", status="ok", kind="seed")) == (0, 10, 8)


def effective_triple(row: Mapping[str, Any]) -> tuple[int, ...]:
    """(steps, top-k, draft tokens) as the server said it runs them."""
    settings: Mapping[str, str] = dict(row["effective"])
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    return tuple(int(json.loads(settings[name])) for name in names)


def test_every_later_trial_is_pinned_to_what_the_baseline_resolved_to(study: Study) -> None:
    assert dict(study.baseline["pins"]) == {}
    resolved = dict(study.baseline["effective"])
    for row in study.trials_of(kind="seed"):
        pins = {name: value for name, value in row["pins"] if not name.startswith("env.")}
        if row["status"] != "rejected":
            assert pins == {name: resolved[name] for name in PINNED}, row["name"]
            assert all(f"--{name.replace('_', '-')} {value}" in row["command"] for name, value in pins.items())


def test_a_speculative_trial_differs_from_plain_decoding_in_its_speculation_alone(study: Study) -> None:
    """And in the overlap schedule, which SGLang turns off by itself where it speculates on a CPU."""
    plain = dict(study.baseline["effective"])
    for row in speculative(study):
        runs = dict(row["effective"])
        differing = {name for name in plain.keys() | runs.keys() if plain.get(name) != runs.get(name)}
        others = {name for name in differing if not name.startswith("speculative_")}
        assert others == {"disable_overlap_schedule"}, row["name"]
        assert row["effective_env"] == study.baseline["effective_env"], row["name"]


def test_the_environment_is_read_from_the_rank_itself_without_secrets(study: Study) -> None:
    """What specsearch gives, what SGLang adds by itself, and neither this launch's own folder nor a secret."""
    for row in measured(study):
        environment = dict(row["effective_env"])
        assert environment.items() >= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}.items()
        assert environment.items() >= {"NCCL_CUMEM_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}.items()
        assert not {"TMPDIR", "HOME", "CUDA_VISIBLE_DEVICES", "SGLANG_RUN_ID"} & environment.keys()
    stored = [repr(row) for row in (*study.trials, *study.table("measurements"))]
    assert not [text for text in stored if SECRET in text]


def test_a_point_that_resolves_to_a_measured_one_is_skipped_once_its_server_says_so(study: Study) -> None:
    row = study.trial_of(status="skipped_duplicate", kind="seed")
    assert (row["reason"], row["phase"]) == ("same_effective_configuration", "verify")
    assert "--schedule-conservativeness 1.0" in row["command"]
    assert row["effective_key"] == study.baseline["effective_key"]
    assert row["measurement_rows"] == 0


def test_an_eagle3_head_under_another_algorithm_is_refused_before_anything_starts(study: Study) -> None:
    row = study.trial_of(status="rejected")
    assert row["reason"] == "draft_mismatch"
    assert "is an EAGLE-3 head (LlamaForCausalLMEagle3), but speculative_algorithm is EAGLE" in row["message"]
    assert row["command"] is None
    assert row["log_path"] is None


def test_a_value_that_the_command_line_refuses_ends_the_launch_with_exit_code_2(study: Study) -> None:
    row = study.trial_of(reason="arg_rejected", exit_code=2, kind="seed")
    assert row["status"] == "infeasible"
    assert "argument --schedule-policy: invalid choice: 'newest-first'" in row["detail"]


def test_a_value_that_the_resolution_refuses_ends_the_launch_with_exit_code_1(study: Study) -> None:
    row = study.trial_of(reason="arg_rejected", exit_code=1, kind="seed")
    assert row["status"] == "infeasible"
    assert row["detail"] == "ValueError: --swa-full-tokens-ratio should be in range (0, 1.0]."
    assert "Load weight begin" not in study.log_of(row)


def test_weights_that_cannot_be_read_end_the_launch_while_it_loads_and_are_tried_once(study: Study) -> None:
    """Another attempt would read the same file."""
    row = study.trial_of(draft_model="/eagle3-truncated", kind="seed")
    assert (row["status"], row["reason"], row["attempt"]) == ("infeasible", "weights_unreadable", 1)
    assert row["exit_code"] == -9  # SGLang kills its own process tree
    assert "SafetensorError" in row["detail"]
    assert "Load weight end" in study.log_of(row), "the target was loaded before its drafter"


def test_the_sampler_proposed_a_point_of_its_own(study: Study) -> None:
    assert len(study.trials_of(kind="search")) == 1


def test_every_row_says_which_engine_it_was(study: Study) -> None:
    assert {(row["engine"], row["simulated"]) for row in study.trials} == {("sglang", False)}
    assert {row["engine_version"] for row in study.trials if row["command"]} == {"0.5.23"}
    facts = [dict(row["model_facts"]) for row in speculative(study) if row["speculative_algorithm"] in DRAFTING]
    assert all(fact.keys() >= {"model.digest", "draft_model.digest"} for fact in facts)


def test_no_process_of_the_study_lives_on(study: Study) -> None:
    """RC-02; and no GPU was claimed by a study on the CPU."""
    commands = [command for command in study.watched.processes.values() if "sglang.launch_server" in command]
    assert len(commands) >= len(measured(study))
    assert any(command.startswith("sglang::scheduler") for command in study.watched.processes.values())
    assert study.left_behind == {}
    assert {row["gpu_count"] for row in study.trials} == {0}


def test_no_file_of_the_study_is_left_outside_its_results(study: Study) -> None:
    """Not in the servers' temporary folders, which were there, and not in shared memory."""
    launched = [row for row in study.trials if row["command"]]
    assert all(f"TMPDIR={study.tmp}/ss-" in row["command"] for row in launched)
    locks_of_ports = f"specsearch-ports-{os.getuid()}"  # empty files that later studies lock again
    assert {path.name for path in study.tmp.iterdir()} <= {locks_of_ports}
    assert study.watched.shared_memory, "servers were seen to use shared memory"
    assert not [path for path in sorted(study.watched.shared_memory) if os.path.lexists(path)]


def test_no_port_of_the_study_is_listened_on(study: Study) -> None:
    ports = [
        int(port) for row in study.trials if row["command"] for port in re.findall(r"--port (\d+)", row["command"])
    ]
    assert len(set(ports)) == len(ports) >= len(measured(study))
    assert not [port for port in ports if is_listened_on(port)]
