"""The simulated server as a real process: arguments, log, HTTP, pace and end."""

import itertools
import os
import re
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specsearch.engines.simulated.arguments import build_parser, resolve
from specsearch.engines.simulated.draft_tree import TreeShape
from specsearch.engines.simulated.model import Machine
from specsearch.engines.simulated.profiles import DRAFTERS, GPUS, TARGETS
from tests.engines.simulated_launch import CHAT, READY, Running, all_end, children_of, is_alive, ready, started, triple

# How SGLang's log is read: a head, then each field by itself.
HEAD = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d{3})?((?: (?:DP|PP|TP|EP)\d+)*)\] (Decode|Prefill) batch")
FIELDS = {
    "running": re.compile(r"#running-req: (\d+)"),
    "queue": re.compile(r"#queue-req: (\d+)"),
    "accept_len": re.compile(r"\baccept len: (\d+(?:\.\d+)?)"),
    "accept_rate": re.compile(r"\baccept rate: (\d+(?:\.\d+)?)"),
    "graph": re.compile(r"\b(?:cuda|cpu|npu|musa) graph: (True|False)\b"),
    "throughput": re.compile(r"gen throughput \(token/s\): (\d+(?:\.\d+)?)"),
}
CAPTURE = re.compile(r"Capture (?:(?P<name>.+?) )?(?P<kind>CUDA|cuda) graph (?P<event>begin|end)\b")


@pytest.fixture(scope="module")
def tree_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server that speculates with a tree, for the tests that leave it as it was."""
    with ready(tmp_path_factory.mktemp("tree"), *triple(3, 4, 8), "--decode-log-interval", "5") as server:
        yield server


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The same for plain decoding, on two ranks."""
    with ready(tmp_path_factory.mktemp("plain"), "--tp-size", "2", "--decode-log-interval", "5") as server:
        yield server


class TestAnswers:
    def test_the_counts_of_an_answer_add_up(self, tree_server: Running) -> None:
        """ME-02"""
        meta = tree_server.generate(tokens=100)["meta_info"]
        steps, correct, histogram = (
            meta["spec_verify_ct"],
            meta["spec_num_correct_drafts"],
            meta["spec_correct_drafts_histogram"],
        )
        assert meta["completion_tokens"] == 100
        assert 0 <= 1 + steps + correct - 100 < 4, "the last step may bring more than is wanted"
        assert sum(histogram) == steps
        assert sum(depth * count for depth, count in enumerate(histogram)) == correct
        assert meta["spec_num_proposed_drafts"] == steps * 7
        assert meta["spec_accept_rate"] == pytest.approx(correct / (steps * 7))
        assert meta["spec_accept_length"] == pytest.approx(100 / steps)
        assert meta["finish_reason"] == {"type": "length", "length": 100}
        assert meta["prompt_tokens"] == len(CHAT.split())
        assert meta["e2e_latency"] > 0

    def test_plain_decoding_says_nothing_of_speculation(self, plain_server: Running) -> None:
        meta = plain_server.generate(tokens=20)["meta_info"]
        assert meta["completion_tokens"] == 20
        assert [name for name in meta if name.startswith("spec_")] == []

    def test_a_stream_grows_and_only_its_last_chunk_has_the_counts(self, tree_server: Running) -> None:
        chunks = [chunk for _, chunk in tree_server.stream(tokens=60)]
        tokens = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
        assert tokens == sorted(set(tokens))
        assert tokens[0] == 1
        assert tokens[-1] == 60
        for chunk in chunks:
            assert len(chunk["output_ids"]) == chunk["meta_info"]["completion_tokens"] == len(chunk["text"].split())
            assert ("spec_verify_ct" in chunk["meta_info"]) == (chunk is chunks[-1])
            assert (chunk["meta_info"]["finish_reason"] is None) == (chunk is not chunks[-1])
        assert all(later["text"].startswith(sooner["text"]) for sooner, later in itertools.pairwise(chunks))

    def test_a_reader_that_dawdles_still_gets_the_end(self, tree_server: Running) -> None:
        before = tree_server.counter("num_requests_total")

        def dawdle() -> None:
            deadline = time.monotonic() + 20
            while tree_server.counter("num_requests_total") == before:
                assert time.monotonic() < deadline

        last = tree_server.stream(tokens=2500, before_reading=dawdle)[-1][1]["meta_info"]
        assert (last["completion_tokens"], last["finish_reason"]["type"]) == (2500, "length")

    def test_greedy_answers_are_the_same_every_time_and_sampled_counts_are_of_the_launch(
        self, tree_server: Running
    ) -> None:
        first, second = (tree_server.generate(tokens=80) for _ in range(2))
        assert first["text"] == second["text"]
        assert (
            first["meta_info"]["spec_correct_drafts_histogram"] == second["meta_info"]["spec_correct_drafts_histogram"]
        )

    def test_text_and_ids_are_both_taken_and_neither_or_nonsense_is_refused(self, tree_server: Running) -> None:
        ids = tree_server.json(
            "/generate", {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        )
        assert ids["meta_info"]["prompt_tokens"] == 3
        for bad in ({}, {"text": "x", "input_ids": [1]}, {"text": "x", "sampling_params": 5}, []):
            status, body = tree_server.request("/generate", bad)
            assert status == 400
            assert b"error" in body

    def test_a_prompt_longer_than_the_context_is_refused(self, tree_server: Running) -> None:
        status, body = tree_server.request("/generate", {"text": "word " * 9000})
        assert status == 400
        assert b"longer than the model's context length" in body

    def test_without_ignore_eos_a_reply_ends_by_itself(self, tree_server: Running) -> None:
        answer = tree_server.json(
            "/generate", {"text": CHAT, "sampling_params": {"max_new_tokens": 2000, "temperature": 0}}
        )
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        assert answer["meta_info"]["completion_tokens"] < 2000

    def test_the_accept_length_falls_from_code_to_chat_to_random_words(self, tree_server: Running) -> None:
        code = "Write a Python function and a class with a method that does what the script in the bug report cannot do"
        noise = "lamp otter gravel piston yellow fern cobalt wharf mitten anvil sprout quartz banjo " * 3
        lengths = [1 + m["spec_num_correct_drafts"] / m["spec_verify_ct"] for p in (code, CHAT, noise)
                   if (m := tree_server.generate(p, 600)["meta_info"])]  # fmt: skip
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[2] < 1.3


class TestCacheAndCounters:
    def test_a_prompt_is_cached_until_the_cache_is_flushed(self, tree_server: Running) -> None:
        """ME-07"""
        prompt = "This very prompt is asked three times in a row by the same client"
        assert tree_server.request("/flush_cache", method="POST")[0] == 200
        cached = [tree_server.generate(prompt, 4)["meta_info"]["cached_tokens"] for _ in range(2)]
        assert cached == [0, len(prompt.split()) - 1]
        assert tree_server.request("/flush_cache?timeout=2", method="POST")[0] == 200
        assert tree_server.generate(prompt, 4)["meta_info"]["cached_tokens"] == 0

    def test_flushing_resets_the_lifetime_accept_length_which_moves_with_log_lines_only(
        self, tree_server: Running
    ) -> None:
        """ME-02"""
        tree_server.request("/flush_cache", method="POST")
        assert "avg_spec_accept_length" not in tree_server.json("/server_info")["internal_states"][0]
        tree_server.generate(tokens=4)  # three steps at most, five are a line
        assert "avg_spec_accept_length" not in tree_server.json("/server_info")["internal_states"][0]
        tree_server.generate(tokens=100)
        assert 1 < tree_server.json("/server_info")["internal_states"][0]["avg_spec_accept_length"] < 4

    def test_a_running_request_keeps_the_cache_from_being_flushed(self, plain_server: Running) -> None:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(plain_server.generate, CHAT, 600)
            while plain_server.counter("num_running_reqs") == 0:
                assert not answer.done()
            assert plain_server.request("/flush_cache", method="POST")[0] == 400
            assert answer.result()["meta_info"]["completion_tokens"] == 600

    def test_counters_give_the_accept_length_of_a_window_and_tell_graph_passes(self, tree_server: Running) -> None:
        names = (
            ("generation_tokens_total", ""),
            ("spec_verify_calls_total", ""),
            ("cuda_graph_passes_total", "decode_cuda_graph"),
        )
        before = [tree_server.counter(*name) for name in names]
        meta = tree_server.generate(tokens=50)["meta_info"]
        tokens, verifies, passes = (tree_server.counter(*name) - b for name, b in zip(names, before, strict=True))
        assert (tokens, verifies, passes) == (50, meta["spec_verify_ct"], meta["spec_verify_ct"])
        assert tree_server.counter("cuda_graph_passes_total", "decode_none") == 0

    def test_what_0_5_23_no_longer_has_is_not_found(self, tree_server: Running) -> None:
        assert tree_server.request("/get_load")[0] == 404


class TestDescriptions:
    def test_the_server_info_has_resolved_arguments_version_command_and_states(self, tree_server: Running) -> None:
        info: dict[str, Any] = tree_server.json("/server_info")
        assert info["version"] == "0.5.23"
        assert info["speculative_algorithm"] == "EAGLE3"
        assert info["speculative_num_draft_tokens"] == 8
        assert info["max_running_requests"] == 48, "SM-04"
        assert info["attention_backend"] == "triton"
        assert info["cuda_graph_config"]["decode"]["bs"][:8] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert "--speculative-eagle-topk 4" in info["launch_command"]
        assert info["internal_states"][0]["memory_usage"]["token_capacity"] > 0
        assert tree_server.json("/get_server_info").keys() == info.keys()

    def test_the_other_endpoints_answer(self, tree_server: Running) -> None:
        assert tree_server.json("/v1/models")["data"][0]["id"] == "/models/tiny"
        assert tree_server.json("/model_info")["model_path"] == "/models/tiny"
        assert tree_server.json("/v1/loads")["loads"][0]["num_running_reqs"] == 0
        assert tree_server.request("/health")[0] == tree_server.request("/ready")[0] == 200
        accepted = tree_server.json(
            "/set_internal_state", {"server_args": {"speculative_accept_threshold_single": 1.0}}
        )
        refused = tree_server.json("/set_internal_state", {"server_args": {"speculative_num_steps": 2}})
        assert (accepted, refused) == ({"updated": True}, {"updated": False})

    def test_aborting_ends_what_runs(self, plain_server: Running) -> None:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(plain_server.generate, CHAT, 6000)
            while plain_server.counter("num_running_reqs") == 0:
                assert not answer.done()
            assert plain_server.request("/abort_request", {"abort_all": True})[0] == 200
            meta = answer.result()["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert meta["completion_tokens"] < 6000

    def test_the_server_tells_its_own_variables_only_if_asked_to(self, tmp_path: Path, tree_server: Running) -> None:
        """SM-08"""
        assert "env_vars" not in tree_server.json("/server_info")["internal_states"][0]
        with ready(tmp_path, env={"SGLANG_EXPOSE_OWN_ENV_VARS": "1", "NCCL_PROTO": "LL"}) as server:
            variables = server.json("/server_info")["internal_states"][0]["env_vars"]
        assert variables["NCCL_PROTO"] == "LL"
        assert variables["NCCL_CUMEM_ENABLE"] == "0"
        assert variables["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


class TestLog:
    def test_decode_lines_are_read_field_by_field(self, tree_server: Running) -> None:
        """ME-09"""
        tree_server.generate(tokens=100)
        line = tree_server.lines("Decode batch")[-1]
        assert HEAD.match(line)
        found = {name: match.group(1) for name, field in FIELDS.items() if (match := field.search(line))}
        assert found.keys() == FIELDS.keys()
        assert found["graph"] == "True"
        assert 1 <= float(found["accept_len"]) <= 4

    def test_plain_decode_lines_name_the_rank_and_have_no_acceptance(self, plain_server: Running) -> None:
        plain_server.generate(tokens=30)
        line = plain_server.lines("Decode batch")[-1]
        head = HEAD.match(line)
        assert head
        assert head.group(2) == " TP0"
        assert not FIELDS["accept_len"].search(line)
        assert FIELDS["throughput"].search(line)

    def test_the_captured_graphs_tell_whether_speculation_is_on(
        self, tree_server: Running, plain_server: Running
    ) -> None:
        names = [
            [m["name"] for m in CAPTURE.finditer(server.log) if m["event"] == "end"]
            for server in (tree_server, plain_server)
        ]
        assert names == [["target verify", "draft decode", "draft extend"], ["target decode"]]

    def test_events_come_in_sglangs_order(self, tree_server: Running) -> None:
        order = ("server_args=", "Load weight begin", "Load weight end", "KV Cache is allocated", "Memory pool end",
                 "Capture target verify", "max_total_num_tokens=", "Uvicorn running on", READY)  # fmt: skip
        positions = [tree_server.log.index(event) for event in order]
        assert positions == sorted(positions)
        assert len(tree_server.lines("Load weight end")) == 2, "target and drafter"

    def test_graphs_off_shows_as_such_everywhere(self, tmp_path: Path) -> None:
        with ready(tmp_path, "--disable-cuda-graph", "--decode-log-interval", "5") as server:
            server.generate(tokens=30)
            assert not CAPTURE.search(server.log)
            assert "cuda graph: False" in server.lines("Decode batch")[-1]
            assert server.counter("cuda_graph_passes_total", "decode_none") > 0
            assert server.json("/server_info")["cuda_graph_config"]["decode"]["backend"] == "disabled"


class TestPace:
    @pytest.mark.parametrize("shape", [None, TreeShape(3, 1, 4)], ids=["plain", "chain"])
    def test_decoding_takes_the_modelled_time_per_step(self, tmp_path: Path, shape: TreeShape | None) -> None:
        machine = Machine(GPUS["h200"], TARGETS["llama-8b"], 1, DRAFTERS["eagle3"] if shape else None, shape, (1, 2, 4))
        flags = triple(3, 1, 4) if shape else ()
        with ready(tmp_path, *flags, target="llama-8b", gpu="h200") as server:
            pace = []
            for number in range(5):
                chunks = server.stream(f"({number}) {CHAT}", 31 if shape is None else 70)
                meta = chunks[-1][1]["meta_info"]
                steps = meta.get("spec_verify_ct") or meta["completion_tokens"] - 1
                assert steps >= 25
                pace.append((chunks[-1][0] - chunks[0][0]) / steps * 1e3)
        assert statistics.median(pace) == pytest.approx(machine.step_ms(1, 50), rel=0.1)

    def test_requests_that_run_together_share_the_steps(self, tmp_path: Path) -> None:
        with ready(tmp_path, target="llama-8b", gpu="h200") as server:
            alone = server.generate(f"(0) {CHAT}", 30)["meta_info"]["e2e_latency"]
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(lambda n: server.generate(f"({n}) {CHAT}", 30), range(1, 5)))
        slowest = max(answer["meta_info"]["e2e_latency"] for answer in answers)
        assert slowest < 2 * alone, "four at once are not four after another"

    def test_no_more_requests_run_than_allowed_and_the_others_wait(self, tmp_path: Path) -> None:
        """SM-04"""
        flags = ("--max-running-requests", "2")
        with ready(tmp_path, *flags, target="llama-8b", gpu="h200") as server, ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(server.generate, f"({n}) {CHAT}", 100) for n in range(4)]
            seen = set()
            while not all(answer.done() for answer in answers):
                load = server.json("/v1/loads")["loads"][0]
                seen.add((load["num_running_reqs"], load["num_waiting_reqs"]))
        assert max(running for running, _ in seen) == 2
        assert (2, 2) in seen
        assert all(answer.result()["meta_info"]["completion_tokens"] == 100 for answer in answers)


class TestArguments:
    @pytest.mark.parametrize(
        ("flags", "exit_code", "text"),
        [
            (("--speculative-nonsense", "1"), 2, "serve: error: unrecognized arguments: --speculative-nonsense 1"),
            (("--cuda-graph-max-bs", "8"), 2, "ambiguous option: --cuda-graph-max-bs could match"),
            (("--speculative-algorithm", "EAGLE9"), 1, "ValueError: Unknown speculative algorithm name: EAGLE9"),
            (("--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "4"), 1, "\nAssertionError\n"),
            (("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "4"), 1, "TypeError: '>' not"),
        ],
        ids=["unknown", "ambiguous", "algorithm", "part-of-triple", "steps-alone"],
    )  # fmt: skip
    def test_bad_arguments_end_the_server_as_they_end_sglang(
        self, tmp_path: Path, flags: tuple[str, ...], exit_code: int, text: str
    ) -> None:
        """LF-06, LF-21"""
        with started(tmp_path, *flags) as server:
            assert server.wait_for_end() == exit_code
            assert text in server.log
            assert "Load weight" not in server.log

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (("--attention-backend", "trtllm_mha"), "only supports topk = 1"),
            (("--attention-backend", "fa4", "--page-size", "16"), "with page_size > 1"),
            (("--chunked-prefill-size", "100", "--page-size", "16"), "divisible by page_size"),
        ],
    )
    def test_a_tree_is_refused_where_sglang_cannot_verify_it(self, flags: tuple[str, ...], words: str) -> None:
        """LF-05"""
        args = build_parser().parse_args(["--model-path", "/m", *triple(3, 4, 8), *flags])
        with pytest.raises(ValueError, match=words):
            resolve(args, GPUS["rtx-pro-6000"], TARGETS["tiny"])

    @pytest.mark.parametrize(
        ("flags", "hardware", "env", "text"),
        [
            (triple(1, 4, 16), {}, {}, "RuntimeError: selected index k out of range"),
            (triple(3, 4, 8)[:2], {}, {}, "AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'"),
            (("--mem-fraction-static", "0.6", "--tp-size", "8"), {"target": "kimi-k2.5"}, {}, "Not enough memory."),
            (("--tp-size", "4"), {"target": "kimi-k2.5"}, {}, "torch.OutOfMemoryError: CUDA out of memory"),
            (
                (*triple(5, 8, 64), "--mem-fraction-static", "0.95", "--max-running-requests", "200", "--tp-size", "8"),
                {"target": "kimi-k2.5"}, {}, "Exception: Capture cuda graph failed: CUDA out of memory",
            ),
            (("--mem-fraction-static", "0.999", "--tp-size", "8"), {"target": "kimi-k2.5"}, {}, "CUDA out of memory"),
            (("--tp-size", "2"), {}, {"NCCL_ALGO": "NVLS"}, "no algorithm/protocol available for function"),
        ],
        ids=["tree-too-big", "no-drafter", "kv-budget", "weights", "capture", "fraction", "nccl"],
    )  # fmt: skip
    def test_what_only_loading_finds_out_kills_the_server_by_its_own_hand(
        self, tmp_path: Path, flags: tuple[str, ...], hardware: dict[str, Any], env: dict[str, str], text: str
    ) -> None:
        """LF-01, LF-02, LF-03, LF-10, LF-13"""
        with started(tmp_path, *flags, env=env, **hardware) as server:
            assert server.wait_for_end() == -9
            assert text in server.log
            assert "kill_process_tree called" in server.log
            assert READY not in server.log

    def test_top_k_1_fixes_the_draft_tokens_with_a_warning(self, tmp_path: Path) -> None:
        """SM-02"""
        with ready(tmp_path, *triple(3, 1, 16)) as server:
            assert "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1" in server.log
            assert server.json("/server_info")["speculative_num_draft_tokens"] == 4

    def test_eagle_with_an_eagle3_drafter_starts_and_accepts_nothing(self, tmp_path: Path) -> None:
        """SM-01"""
        flags = tuple("EAGLE" if word == "EAGLE3" else word for word in triple(3, 4, 8))
        with ready(tmp_path, *flags) as server:
            meta = server.generate(tokens=40)["meta_info"]
        assert meta["spec_num_correct_drafts"] == 0
        assert meta["spec_verify_ct"] == 39

    def test_a_taken_port_leaves_a_living_server_that_never_answers(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, started(tmp_path, port=taken.getsockname()[1]) as server:
            server.wait_for("Waiting for application shutdown.")
            assert "[Errno 98] error while attempting to bind on address ('127.0.0.1'" in server.log
            assert "address already in use" in server.log
            assert server.process.poll() is None
            assert READY not in server.log


class TestEnd:
    def test_sigterm_lets_running_requests_finish_and_then_exits_with_0(self, tmp_path: Path) -> None:
        with ready(tmp_path, "--tp-size", "2") as server, ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.generate, CHAT, 400)
            while server.counter("num_running_reqs") == 0:
                assert not answer.done()
            server.process.send_signal(signal.SIGTERM)
            assert answer.result()["meta_info"]["completion_tokens"] == 400
            assert server.wait_for_end() == 0
            assert not any(map(is_alive, server.children))

    def test_sigterm_to_the_whole_group_ends_cleanly_too(self, tmp_path: Path) -> None:
        with ready(tmp_path, "--tp-size", "2") as server:
            os.killpg(server.process.pid, signal.SIGTERM)
            assert server.wait_for_end() == 0

    def test_sigterm_while_loading_ends_it_at_once(self, tmp_path: Path) -> None:
        with started(tmp_path, faults=[{"kind": "never_ready"}]) as server:
            server.wait_for("Init COMPLETE")
            server.process.terminate()
            assert server.wait_for_end() == -signal.SIGTERM
            assert len(server.children) == 2
            assert all_end(server.children), "children die with their parent"

    def test_there_is_a_named_process_per_rank_and_a_detokenizer(self, plain_server: Running) -> None:
        names = sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in children_of(plain_server.process.pid))
        assert names == ["sglang::detoken", "sglang::schedul", "sglang::schedul"]

    def test_a_killed_rank_takes_the_server_along(self, tmp_path: Path) -> None:
        with ready(tmp_path, "--tp-size", "2") as server:
            victim = next(
                pid for pid in children_of(server.process.pid) if "schedul" in Path(f"/proc/{pid}/comm").read_text()
            )
            os.kill(victim, signal.SIGKILL)
            assert server.wait_for_end() == -9
            assert "crashed with exit code -9. Triggering SIGQUIT" in server.log
