"""What the simulated server tells on request, the ranks' environment, and algorithms without a fixed tree."""

import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from specsearch.config import EngineConfig, SimulatedHardware
from specsearch.engines.sglang.effective import own_environment
from specsearch.engines.simulated import SimulatedEngine
from specsearch.engines.simulated.adaptive import AdaptiveSteps, all_steps, candidates_of
from specsearch.engines.simulated.arguments import build_parser, resolve
from specsearch.engines.simulated.draft_tree import TreeShape
from specsearch.engines.simulated.environment import settled
from specsearch.engines.simulated.faults import Faults
from specsearch.engines.simulated.ngram import FOUND, NgramDraft
from specsearch.engines.simulated.profiles import GPUS, TARGETS
from tests.engines.simulated_launch import CHAT, DEADLINE_S, Running, children_of, ready, started, triple

NGRAM = ("--speculative-algorithm", "NGRAM")
CODE = "Write a Python function and a class with a method that does what the script in the bug report cannot do"


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that tells its step times, streams what is new and logs often, with two ranks."""
    flags = (*triple(3, 1, 4), "--decode-log-interval", "5", "--incremental-streaming-output", "--tp-size", "2")
    env = {"SGLANG_RECORD_STEP_TIME": "1", "NCCL_PROTO": "LL"}
    with ready(tmp_path_factory.mktemp("telling"), *flags, env=env) as server:
        yield server


def rank_environment(*flags: str, faults: tuple[Mapping[str, object], ...] = (), **given: str) -> dict[str, str]:
    """What is settled for these flags, the given variables aside where they stay."""
    resolved = resolve(build_parser().parse_args(["--model-path", "/m", *flags]), GPUS["h200"], TARGETS["tiny"])
    return settled(given, resolved, Faults.of_launch(faults, {}, random.Random(0)))


class TestTelling:
    def test_step_times_are_told_by_batch_size_one_for_each_decode_line(self, telling: Running) -> None:
        before = len(telling.lines("Decode batch"))
        telling.generate(tokens=120)
        (state,) = telling.json("/server_info")["internal_states"]
        assert set(state["step_time_dict"]) == {"1"}
        times = state["step_time_dict"]["1"]
        assert len(times) == len(telling.lines("Decode batch")) > before
        assert all(0 < seconds < 1 for seconds in times[1:])

    def test_step_times_are_told_only_where_they_are_asked_for(self, tmp_path: Path) -> None:
        with ready(tmp_path) as server:
            server.generate(tokens=60)
            assert "step_time_dict" not in server.json("/server_info")["internal_states"][0]

    def test_an_incremental_stream_brings_what_is_new_and_counts_everything(self, telling: Running) -> None:
        chunks = [chunk for _, chunk in telling.stream(tokens=60)]
        counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
        assert [len(chunk["output_ids"]) for chunk in chunks] == [b - a for a, b in itertools.pairwise([0, *counts])]
        whole = telling.generate(tokens=60)
        assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
        assert [token for chunk in chunks for token in chunk["output_ids"]] == whole["output_ids"]

    def test_no_request_starts_before_there_is_room_for_its_tokens(self, tmp_path: Path) -> None:
        """SM-04: the batch limit is not the only one."""
        with ready(tmp_path, "--max-total-tokens", "3000", "--decode-log-interval", "1") as server:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda number: server.generate(f"({number}) {CHAT}", 2000), range(2)))
            assert server.lines("Decode batch", "#queue-req: 1")
            assert not server.lines("Decode batch", "#running-req: 2")


class TestEnvironment:
    def test_a_rank_shows_its_title_and_the_environment_that_the_server_settled(self, telling: Running) -> None:
        """SM-08"""
        shown = [command_and_environment(pid) for pid in children_of(telling.process.pid)]
        titles = sorted(command for command, _ in shown)
        assert titles == ["sglang::detokenizer", "sglang::scheduler_TP0", "sglang::scheduler_TP1"]
        environment = own_environment(shown)
        assert environment
        assert environment["NCCL_PROTO"] == "LL"
        assert environment["NCCL_CUMEM_ENABLE"] == environment["NCCL_NVLS_ENABLE"] == "0"
        assert environment["NCCL_GRAPH_REGISTER"] == "0"
        assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"

    def test_given_values_stay_but_where_a_flag_forces_another(self) -> None:
        """SM-08: the rules of 0.5.23."""
        given = {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        kept = rank_environment(**given)
        assert (kept["NCCL_CUMEM_ENABLE"], kept["NCCL_NVLS_ENABLE"]) == ("1", "1")
        assert kept["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
        symmetric = rank_environment("--enable-symm-mem", NCCL_CUMEM_ENABLE="0", NCCL_NVLS_ENABLE="0")
        assert (symmetric["NCCL_CUMEM_ENABLE"], symmetric["NCCL_NVLS_ENABLE"]) == ("1", "1")
        assert rank_environment("--enable-nccl-nvls", NCCL_NVLS_ENABLE="0")["NCCL_NVLS_ENABLE"] == "1"
        fixed = rank_environment("--enable-deterministic-inference", "--tp-size", "2", NCCL_ALGO="Ring")
        assert fixed["NCCL_ALGO"] == "allreduce:tree"

    @pytest.mark.parametrize(
        ("flags", "registers"),
        [
            (("--tp-size", "2"), "0"),
            (("--tp-size", "2", "--disable-cuda-graph"), None),
            (("--tp-size", "2", "--disable-decode-cuda-graph"), "0"),  # the prefill graph is one, too
            ((), None),
        ],
        ids=["ranks and graphs", "no graphs", "prefill graph", "one rank"],
    )
    def test_graph_registration_is_turned_off_where_a_graph_may_hold_a_collective(
        self, flags: tuple[str, ...], registers: str | None
    ) -> None:
        assert rank_environment(*flags).get("NCCL_GRAPH_REGISTER") == registers

    def test_a_fault_forces_a_variable_whatever_was_given(self, tmp_path: Path) -> None:
        """SM-08"""
        faults = [{"kind": "variable_forced", "name": "NCCL_NVLS_ENABLE", "value": "1"}]
        with ready(tmp_path, env={"NCCL_NVLS_ENABLE": "0"}, faults=faults) as server:
            environment = own_environment(map(command_and_environment, children_of(server.process.pid)))
        assert environment
        assert environment["NCCL_NVLS_ENABLE"] == "1"


class TestNgram:
    def test_it_needs_no_drafter_and_shows_what_sglang_resolves(self, tmp_path: Path) -> None:
        with ready(tmp_path, *NGRAM) as server:
            info = server.json("/server_info")
            meta = server.generate(CODE, tokens=200)["meta_info"]
            log = server.log
        assert (info["speculative_eagle_topk"], info["speculative_num_draft_tokens"]) == (10, 12)
        assert info["speculative_num_steps"] == 1
        assert meta["spec_num_proposed_drafts"] == 11 * meta["spec_verify_ct"]
        assert 1 < 1 + meta["spec_num_correct_drafts"] / meta["spec_verify_ct"] < 6
        assert log.count("Load weight end") == 1
        assert "Capture target verify" in log
        assert "Capture draft" not in log

    def test_its_accept_length_is_that_of_many_steps_and_highest_where_text_repeats(self) -> None:
        drafts = {kind: NgramDraft.of(TreeShape(1, 10, 12), kind) for kind in FOUND}
        assert drafts["code"].expected_accept_length > drafts["chat"].expected_accept_length > 1
        assert drafts["random"].expected_accept_length < 1.1
        rng = random.Random(1)
        accepted = [drafts["code"].accepted_drafts(rng) for _ in range(20000)]
        assert 1 + statistics.mean(accepted) == pytest.approx(drafts["code"].expected_accept_length, rel=0.03)
        assert max(accepted) <= 11

    def test_pages_are_refused_as_sglang_refuses_them(self) -> None:
        args = build_parser().parse_args(["--model-path", "/m", *NGRAM, "--page-size", "16"])
        with pytest.raises(ValueError, match="> 1 is unstable"):
            resolve(args, GPUS["h200"], TARGETS["tiny"])


class TestAdaptive:
    def test_steps_follow_what_is_accepted_up_and_down(self) -> None:
        adaptive = AdaptiveSteps(candidates_of(None), 3)
        assert adaptive.steps_for(1) == 3
        for _ in range(60):
            adaptive.learn(1, adaptive.steps_for(1))  # everything
        assert adaptive.steps_for(1) == 7
        for _ in range(100):
            adaptive.learn(1, 0.0)
        assert adaptive.steps_for(1) == 1

    def test_each_range_of_batches_learns_for_itself_and_the_largest_drafts_nothing(self) -> None:
        adaptive = AdaptiveSteps(candidates_of(None), 3)
        for _ in range(100):
            adaptive.learn(8, 0.0)
            adaptive.learn(64, 0.0)
        assert adaptive.steps_for(7) == 3
        assert adaptive.steps_for(31) < 3
        assert adaptive.steps_for(100) == 0

    def test_candidates_may_come_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "adaptive.json"
        path.write_text(json.dumps({"ema_alpha": 0.2, "1": {"candidate_steps": [4, 2]}}))
        assert all_steps(candidates_of(str(path))) == [2, 4]
        path.write_text("{}")
        with pytest.raises(ValueError, match="at least one"):
            candidates_of(str(path))

    def test_a_server_goes_over_to_other_steps_while_it_runs_and_says_so(self, tmp_path: Path) -> None:
        flags = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/d/weak")
        with ready(tmp_path, *flags, "--speculative-adaptive") as server:
            assert server.json("/server_info")["speculative_num_steps"] == 3
            meta = server.generate(tokens=300)["meta_info"]
            (state,) = server.json("/server_info")["internal_states"]
            log = server.log
        assert state["speculative_num_steps"] == 1
        assert "Switch adaptive runtime state: steps 3 -> 1, draft_tokens 4 -> 2" in log
        assert log.count("Built adaptive runtime state steps=") == 5
        assert meta["spec_num_proposed_drafts"] < 3 * meta["spec_verify_ct"]

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (triple(3, 4, 8), "only topk=1 is supported"),
            (("--speculative-algorithm", "NGRAM"), "only EAGLE/EAGLE3 are supported"),
        ],
        ids=["tree", "another algorithm"],
    )
    def test_where_it_cannot_adapt_it_is_off_with_a_warning(self, flags: tuple[str, ...], words: str) -> None:
        args = build_parser().parse_args(["--model-path", "/m", *flags, "--speculative-adaptive"])
        resolved = resolve(args, GPUS["h200"], TARGETS["tiny"])
        assert not resolved.args.speculative_adaptive
        assert words in resolved.warnings[0]

    def test_steps_that_are_no_candidate_are_refused(self) -> None:
        args = build_parser().parse_args(["--model-path", "/m", *triple(4, 1, 5), "--speculative-adaptive"])
        with pytest.raises(ValueError, match="not in the adaptive config candidate_steps"):
            resolve(args, GPUS["h200"], TARGETS["tiny"])


class TestDraftContext:
    FLAGS = tuple("/d/short-context" if word == "/drafters/eagle3" else word for word in triple(3, 1, 4))

    def test_a_drafter_made_for_less_text_is_refused_unless_it_is_stretched(self, tmp_path: Path) -> None:
        """LF-14"""
        with started(tmp_path, *self.FLAGS) as server:
            assert server.wait_for_end() == -9
            assert "Target model's context_length (8192) is greater than the derived context_length (256)" in server.log
        with ready(tmp_path, *self.FLAGS, "--context-length", "256"):
            pass

    def test_beyond_its_context_it_guesses_badly(self, tmp_path: Path) -> None:
        """LF-14"""
        with ready(tmp_path, *self.FLAGS, env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}) as server:
            short, long = (server.generate(CODE, tokens=tokens)["meta_info"] for tokens in (200, 3000))
        rates = [meta["spec_num_correct_drafts"] / meta["spec_verify_ct"] for meta in (short, long)]
        assert rates[1] < 0.6 * rates[0]

    def test_the_engine_knows_where_a_drafter_is_stretched(self) -> None:
        """LF-14"""
        hardware = SimulatedHardware(target="tiny", drafter="short-context")
        config = EngineConfig(type="simulated", model="/m", simulated=hardware)
        chain = {"speculative_algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 1}
        assert SimulatedEngine(config).draft_context(chain) == 256
        assert SimulatedEngine(config).draft_context({**chain, "draft_model": "/d/eagle3"}) is None
        assert SimulatedEngine(config).draft_context({"speculative_algorithm": "none"}) is None
        assert SimulatedEngine(config).draft_context({"speculative_algorithm": "NGRAM"}) is None
        assert SimulatedEngine(replace(config, args={"context_length": 256})).draft_context(chain) is None


def command_and_environment(pid: int) -> tuple[str, dict[str, str]]:
    """A child as others see it, once it bears its title."""
    folder, deadline = Path(f"/proc/{pid}"), time.monotonic() + DEADLINE_S
    while not (command := folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode().strip()).startswith(
        "sglang::"
    ):
        assert time.monotonic() < deadline, command
    entries = folder.joinpath("environ").read_bytes().decode().split("\0")
    return command, dict(entry.split("=", 1) for entry in entries if "=" in entry)
