"""Every fault does what it says, to a real server process."""

import json
import os
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from specsearch.engines.simulated.faults import KINDS, Faults, fault_problems
from specsearch.engines.simulated.processes import GpuMemory
from tests.engines.simulated_launch import CHAT, Running, all_end, asking, children_of, is_alive, ready, started, triple


def fault(kind: str, **options: object) -> dict[str, list[Mapping[str, object]]]:
    """One fault, as an argument of `started`."""
    return {"faults": [{"kind": kind, **options}]}


def fails_to_answer(server: Running, *, within_s: float) -> bool:
    """Whether a generation brings nothing in that time."""
    try:
        server.request("/generate", asking(CHAT, 4), timeout_s=within_s)
    except TimeoutError:
        return True
    return False


class TestRequests:
    def test_what_is_wrong_with_a_fault_is_said_in_sentences(self) -> None:
        problems = fault_problems(
            [
                {"kind": "gremlins"},
                {"kind": "slow_start", "seconds": "long", "hours": 3},
                {"kind": "oom_kv", "probability": 2, "when": {"num_steps": 4}},
                {"kind": "bad_server_info", "variant": "blue"},
                {"kind": "ignores_sigterm", "new_session": 1},
                {"kind": "port_in_use_once"},
                {"kind": "memory_kept", "release_after_s": "later"},
                {"kind": "dies_loading", "message": 5},
            ]
        )
        text = "\n".join(problems)
        assert len(problems) == 10
        for words in (
            "no kind 'gremlins'",
            "no option hours",
            "seconds is 'long'",
            "from 0 to 1",
            "map knobs to lists",
            "one of html, missing",
            "true or false",
            "state_file is missing",
            "a number or never",
            "must be text",
        ):
            assert words in text

    def test_every_kind_can_be_asked_for_without_an_option_it_does_not_need(self) -> None:
        assert fault_problems([{"kind": kind} for kind, spec in KINDS.items() if not spec.required]) == []

    def test_a_fault_strikes_only_where_its_knobs_have_the_listed_values(self) -> None:
        fault = {
            "kind": "oom_kv",
            "when": {"num_draft_tokens": [8, 16], "cuda_graph": [True], "env.NCCL_ALGO": ["unset"]},
        }
        hit = {"num_draft_tokens": "16", "cuda_graph": "true"}
        misses = ({"num_draft_tokens": "4"}, {"cuda_graph": "false"}, {"env.NCCL_ALGO": "ring"})
        for knobs, struck in ((hit, True), *((hit | miss, False) for miss in misses), ({}, False)):
            assert ("oom_kv" in Faults.of_launch([fault], knobs, random.Random(0))) is struck

    def test_a_probability_is_a_share_of_launches_and_the_seed_decides_which(self) -> None:
        fault = {"kind": "oom_kv", "probability": 0.3}
        struck = ["oom_kv" in Faults.of_launch([fault], {}, random.Random(seed)) for seed in range(500)]
        assert 0.2 < sum(struck) / 500 < 0.4
        assert struck == ["oom_kv" in Faults.of_launch([fault], {}, random.Random(seed)) for seed in range(500)]

    def test_a_launch_with_a_fault_meets_it_only_under_its_knobs(self, tmp_path: Path) -> None:
        faults = [{"kind": "oom_graph", "when": {"num_draft_tokens": [8], "speculative_algorithm": ["EAGLE3"]}}]
        with started(tmp_path, *triple(3, 4, 8), faults=faults) as server:
            assert server.wait_for_end() == -9
        with ready(tmp_path, *triple(3, 4, 6), faults=faults):
            pass


class TestLoading:
    def test_faults_of_capture_spare_a_server_without_graphs(self, tmp_path: Path) -> None:
        faults = [{"kind": "oom_graph"}, {"kind": "graphs_refused"}]
        with ready(tmp_path, "--disable-cuda-graph", faults=faults) as server:
            assert "Capture" not in server.log

    @pytest.mark.parametrize("exit_code", [3, -7])
    def test_the_exit_code_of_a_death_in_loading_can_be_chosen(self, tmp_path: Path, exit_code: int) -> None:
        with started(
            tmp_path, **fault("dies_loading", exit_code=exit_code, message="OSError: no such shard")
        ) as server:
            assert server.wait_for_end() == exit_code
            assert "OSError: no such shard" in server.log

    def test_a_server_that_is_never_ready_falls_silent_and_lives(self, tmp_path: Path) -> None:
        """LF-09"""
        with started(tmp_path, **fault("never_ready")) as server:
            server.wait_for("Init COMPLETE")
            before = server.log
            assert server.process.poll() is None
            assert before == server.log
            assert "Load weight" not in server.log

    def test_a_slow_start_writes_a_line_now_and_then_or_very_many_and_comes_up(self, tmp_path: Path) -> None:
        """LF-16"""
        faults = [{"kind": "slow_start", "seconds": 0.4, "interval_s": 0.1}, {"kind": "log_flood", "lines": 5000}]
        with ready(tmp_path, faults=faults) as server:
            assert len(server.lines("DeepGEMM warmup:")) == 4
            assert len(server.lines("NCCL INFO Channel")) == 5000

    def test_a_port_is_taken_once_and_free_the_second_time(self, tmp_path: Path) -> None:
        """LF-12"""
        faults = fault("port_in_use_once", state_file=str(tmp_path / "once"))
        with started(tmp_path, **faults) as server:
            assert server.wait_for_end() == -9
            assert "EADDRINUSE" in server.log
        with ready(tmp_path, **faults):
            pass

    def test_a_server_whose_port_is_taken_stays_and_never_answers(self, tmp_path: Path) -> None:
        with started(tmp_path, **fault("port_taken")) as server:
            server.wait_for("Waiting for application shutdown.")
            assert server.process.poll() is None
            with pytest.raises(OSError, match="refused"):
                server.request("/health")


@pytest.fixture(scope="module")
def haunted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server with every fault that leaves it answering."""
    kinds = ("graphs_ignored", "nothing_accepted", "degenerate_output", "warm_cache", "wrong_identity")
    flags = (*triple(3, 1, 4), "--decode-log-interval", "5", "--weight-version", "t0001")
    with ready(tmp_path_factory.mktemp("haunted"), *flags, faults=[{"kind": kind} for kind in kinds]) as server:
        yield server


class TestServing:
    def test_a_crash_under_load_resets_the_connection_and_leaves_an_exception_in_the_log(self, tmp_path: Path) -> None:
        """LF-18"""
        with ready(tmp_path, **fault("dies_under_load", after_requests=2)) as server:
            assert [server.generate(tokens=4)["meta_info"]["completion_tokens"] for _ in range(2)] == [4, 4]
            with pytest.raises(OSError):  # noqa: PT011 - reset or closed, as the system pleases
                server.generate(tokens=5000)
            assert server.wait_for_end() == -9
            assert "Scheduler hit an exception: Traceback" in server.log
            assert "illegal memory access" in server.log

    def test_a_lost_rank_leaves_a_healthy_server_that_generates_nothing(self, tmp_path: Path) -> None:
        """RC-03"""
        with ready(tmp_path, "--tp-size", "2", **fault("child_dies", after_requests=1)) as server:
            assert server.generate(tokens=4)["meta_info"]["completion_tokens"] == 4
            assert fails_to_answer(server, within_s=0.5)
            assert server.request("/health")[0] == 200
            assert server.process.poll() is None
            assert sum(is_alive(pid) for pid in children_of(server.process.pid)) == 2, "one of three is gone"

    @pytest.mark.parametrize("answered", [0, 2])
    def test_a_server_may_be_healthy_and_hang(self, tmp_path: Path, answered: int) -> None:
        """ME-11: at readiness, and after some answers."""
        with ready(tmp_path, **fault("health_but_no_generation", after_requests=answered)) as server:
            for _ in range(answered):
                server.generate(tokens=4)
            assert fails_to_answer(server, within_s=0.5)
            assert server.request("/health")[0] == 200

    def test_captured_graphs_may_never_be_used(self, haunted: Running) -> None:
        """SM-06"""
        haunted.generate(tokens=20)
        assert "Capture target verify CUDA graph end" in haunted.log
        assert "cuda graph: False" in haunted.lines("Decode batch")[-1]
        assert haunted.counter("cuda_graph_passes_total", "decode_cuda_graph") == 0

    def test_nothing_may_be_accepted(self, haunted: Running) -> None:
        """SM-01"""
        assert haunted.generate(tokens=30)["meta_info"]["spec_correct_drafts_histogram"] == [29]

    def test_output_may_collapse_into_one_word(self, haunted: Running) -> None:
        """ME-04"""
        assert set(haunted.generate(tokens=40)["text"].split()) == {"data"}

    def test_a_flush_may_be_answered_and_not_done(self, haunted: Running) -> None:
        """ME-07"""
        haunted.generate(tokens=4)
        assert haunted.request("/flush_cache?timeout=2", method="POST")[0] == 200
        assert haunted.generate(tokens=4)["meta_info"]["cached_tokens"] > 0

    def test_a_server_may_describe_itself_as_somebody_elses(self, haunted: Running) -> None:
        """ME-01"""
        info = haunted.json("/server_info")
        assert info["weight_version"] != "t0001"
        assert info["model_path"] != "/models/tiny"

    @pytest.mark.parametrize("how", ["abort", "error", "short"])
    def test_a_share_of_requests_may_fail(self, tmp_path: Path, how: str) -> None:
        """ME-06"""
        with ready(tmp_path, **fault("request_failures", share=0.5, how=how)) as server:
            bad = [self.went_wrong(server, f"({number}) {CHAT}") for number in range(12)]
        assert 2 <= sum(bad) <= 10

    @staticmethod
    def went_wrong(server: Running, text: str) -> bool:
        last: dict[str, Any] = server.stream(text, 60)[-1][1]
        if "error" in last:
            return True
        meta = last["meta_info"]
        return meta["finish_reason"]["type"] == "abort" or meta["completion_tokens"] < 60

    @pytest.mark.parametrize("variant", ["html", "missing", "no_internal_states"])
    def test_the_description_of_a_server_may_not_be_had(self, tmp_path: Path, variant: str) -> None:
        """ME-03"""
        with ready(tmp_path, **fault("bad_server_info", variant=variant)) as server:
            status, body = server.request("/server_info")
        if variant == "missing":
            assert status == 404
        elif variant == "html":
            assert (status, body[:6]) == (200, b"<html>")
        else:
            assert "internal_states" not in json.loads(body)


class TestEnd:
    def test_sigterm_may_be_ignored_and_ranks_survive_their_parent_in_another_session(self, tmp_path: Path) -> None:
        """RC-02"""
        with ready(tmp_path, "--tp-size", "2", **fault("ignores_sigterm")) as server:
            ranks = [pid for pid in server.children if "schedul" in Path(f"/proc/{pid}/comm").read_text()]
            assert all(os.getsid(pid) != os.getsid(server.process.pid) for pid in ranks)
            for pid in (server.process.pid, *ranks):
                os.kill(pid, signal.SIGTERM)
            server.generate(tokens=4)  # still at work
            assert all(map(is_alive, ranks))
            server.process.kill()
            server.process.wait()
            assert all(map(is_alive, ranks))

    def test_files_may_be_left_in_shared_memory(self, tmp_path: Path) -> None:
        """RC-11"""
        with ready(tmp_path, **fault("writes_shm", files=3)) as server:
            server.process.terminate()
            server.wait_for_end()
            left = list(Path("/dev/shm").glob(f"sglang_loads_{server.process.pid}_*"))
        for path in left:
            path.unlink()
        assert len(left) == 3


class TestGpuMemory:
    @staticmethod
    def held(folder: Path) -> dict[str, dict[str, Any]]:
        """What is written down, by GPU; one file each."""
        return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("gpu*/*.json")}

    @staticmethod
    def gpus(folder: Path) -> dict[str, str]:
        return {"SPECSEARCH_SIMULATED_GPUS": str(folder), "SPECSEARCH_SIMULATED_GPU_INDICES": "4,5"}

    def test_each_rank_holds_memory_on_its_gpu_and_a_clean_end_gives_it_back(self, tmp_path: Path) -> None:
        """RC-01"""
        folder = tmp_path / "gpus"
        with ready(tmp_path, "--tp-size", "2", env=self.gpus(folder)) as server:
            held = self.held(folder)
            assert held.keys() == {"gpu4", "gpu5"}
            assert all(entry["bytes"] > 50e9 and entry["release_after_s"] == 0 for entry in held.values())
            holders = {int(path.stem) for path in folder.glob("gpu*/*.json")}
            assert holders < set(children_of(server.process.pid))
            server.process.terminate()
            assert server.wait_for_end() == 0
        assert self.held(folder) == {}
        assert [path for path in folder.rglob("*") if path.is_file()] == []

    def test_memory_may_be_kept_for_good_after_a_clean_end(self, tmp_path: Path) -> None:
        folder = tmp_path / "gpus"
        with ready(tmp_path, "--tp-size", "2", env=self.gpus(folder), **fault("memory_kept")) as server:
            server.process.terminate()
            assert server.wait_for_end() == 0
        assert [entry["release_after_s"] for entry in self.held(folder).values()] == [-1, -1]

    def test_memory_may_be_kept_for_some_seconds(self) -> None:
        faults = Faults.of_launch([{"kind": "memory_kept", "release_after_s": 2.5}], {}, random.Random(0))
        memory = GpuMemory.of_environment(self.gpus(Path("/nowhere")), 2, faults)
        assert (memory.release_after_s, memory.indices) == (2.5, [4, 5])

    def test_a_crash_leaves_what_it_held_written_down_for_processes_that_are_gone(self, tmp_path: Path) -> None:
        folder = tmp_path / "gpus"
        with started(tmp_path, "--tp-size", "2", env=self.gpus(folder), **fault("oom_graph")) as server:
            assert server.wait_for_end() == -9
        holders = [int(path.stem) for path in folder.glob("gpu*/*.json")]
        assert len(holders) == 2
        assert all_end(holders)
