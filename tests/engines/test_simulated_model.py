"""The physical model behind the simulated engine: acceptance, step time, memory, texts."""

import random
import statistics
from collections.abc import Mapping
from dataclasses import replace

import pytest

from specsearch.engines.simulated.draft_tree import FIRST_GUESS, DraftTree, TreeShape
from specsearch.engines.simulated.model import Machine, Transport, default_fraction, graph_gb, interpolate, memory_of
from specsearch.engines.simulated.profiles import DRAFTERS, GPUS, TARGETS, drafter_of
from specsearch.engines.simulated.texts import Reply, kind_of
from specsearch.speculation import tree_capacity

ORIGIN = TreeShape(3, 4, 16)
GRAPHS = tuple(range(1, 49))
TUNED = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_NTHREADS": "512",
}


def kimi(
    shape: TreeShape | None = None,
    *,
    graphs: bool = True,
    env: Mapping[str, str] | None = None,
    gpu: str = "rtx-pro-6000",
    target: str = "kimi-k2.5",
    tp_size: int = 8,
) -> Machine:
    transport = Transport.of(TUNED if env is None else env, nvlink=GPUS[gpu].nvlink)
    drafter = DRAFTERS["eagle3"] if shape else None
    batches = GRAPHS if graphs else ()
    return Machine(GPUS[gpu], TARGETS[target], tp_size, drafter, shape, batches, transport=transport)


def accept_length(shape: TreeShape, kind: str = "chat", skill: float = 1.0, temperature: float = 0.0) -> float:
    return DraftTree.grow(shape, kind, skill, temperature).expected_accept_length


def tokens_per_s(machine: Machine, kind: str = "chat", batch: int = 1) -> float:
    length = accept_length(machine.tree, kind) if machine.tree else 1.0
    return batch * length / machine.step_ms(batch, batch * 300) * 1e3


class TestAcceptLength:
    def test_the_origin_storys_tree_accepts_what_it_accepted_there(self) -> None:
        assert 2.1 <= accept_length(ORIGIN) <= 2.5
        assert 2.0 <= accept_length(TreeShape(3, 4, 5)) <= 2.2
        assert 1.8 <= accept_length(ORIGIN, skill=DRAFTERS["other"].skill) <= 2.2

    @pytest.mark.parametrize("kind", FIRST_GUESS)
    def test_more_steps_top_k_or_draft_tokens_never_accept_less(self, kind: str) -> None:
        by_steps = [accept_length(TreeShape(steps, 1, steps + 1), kind) for steps in range(1, 9)]
        by_top_k = [accept_length(TreeShape(3, top_k, 8), kind) for top_k in (2, 3, 4, 6, 8)]
        by_tokens = [accept_length(TreeShape(3, 4, tokens), kind) for tokens in range(2, 38)]
        for lengths in (by_steps, by_top_k, by_tokens):
            assert lengths == sorted(lengths)
            assert lengths[0] < lengths[-1]

    def test_a_chain_accepts_the_sum_of_the_products_of_its_falling_chances(self) -> None:
        tree = DraftTree.grow(TreeShape(3, 1, 4), "chat", 1.0)
        first, second, third = (chances[0] for chances in tree.chances)
        assert first > second > third
        assert tree.expected_accept_length == pytest.approx(1 + first + first * second + first * second * third)

    def test_a_tree_holds_all_the_draft_tokens_it_is_given_and_every_nodes_parent(self) -> None:
        for shape in (ORIGIN, TreeShape(2, 8, 33), TreeShape(5, 2, 12)):
            nodes = DraftTree.grow(shape, "code", 1.0).nodes
            assert len(nodes) == shape.num_draft_tokens - 1
            assert all(len(path) == 1 or path[:-1] in nodes for path in nodes)

    def test_the_candidates_are_as_many_as_the_tree_capacity_says(self) -> None:
        """LF-02"""
        for steps, top_k in ((1, 4), (2, 2), (3, 4), (4, 8)):
            endless = DraftTree.grow(TreeShape(steps, top_k, 10_000), "chat", 1.0)
            assert len(endless.nodes) + 1 == tree_capacity(steps, top_k)

    @pytest.mark.parametrize("shape", [ORIGIN, TreeShape(4, 1, 5), TreeShape(2, 8, 24)])
    def test_sampled_steps_agree_with_the_expectation(self, shape: TreeShape) -> None:
        tree, rng = DraftTree.grow(shape, "code", 1.0), random.Random(1)
        counts = [tree.accepted_drafts(rng) for _ in range(20_000)]
        assert 1 + statistics.fmean(counts) == pytest.approx(tree.expected_accept_length, rel=0.02)
        assert max(counts) <= shape.num_steps

    def test_code_accepts_more_than_chat_and_random_words_next_to_nothing(self) -> None:
        """ME-05"""
        assert accept_length(ORIGIN, "code") > accept_length(ORIGIN, "math") > accept_length(ORIGIN, "chat")
        assert accept_length(ORIGIN, "random") < 1.2

    def test_heat_and_a_weak_drafter_cost_acceptance_and_no_skill_leaves_none(self) -> None:
        """SM-01"""
        assert accept_length(ORIGIN, temperature=1.0) < accept_length(ORIGIN)
        assert accept_length(ORIGIN, skill=DRAFTERS["weak"].skill) < accept_length(ORIGIN, skill=0.9)
        assert accept_length(ORIGIN, skill=0.0) == 1.0


class TestStepTime:
    def test_the_origin_storys_figures_come_out_on_its_machine(self) -> None:
        assert tokens_per_s(kimi()) == pytest.approx(90, rel=0.03)
        assert tokens_per_s(kimi(ORIGIN, graphs=False)) == pytest.approx(56.7, rel=0.08)
        assert tokens_per_s(kimi(TreeShape(3, 4, 5), graphs=False)) == pytest.approx(53.2, rel=0.08)

    def test_speculation_without_graphs_loses_and_a_short_chain_with_graphs_wins(self) -> None:
        plain = tokens_per_s(kimi())
        assert tokens_per_s(kimi(ORIGIN, graphs=False)) < 0.75 * plain
        shapes = [TreeShape(2, 1, 3), TreeShape(3, 1, 4), TreeShape(3, 2, 6), ORIGIN, TreeShape(5, 8, 32)]
        speeds = [tokens_per_s(kimi(shape)) / plain for shape in shapes]
        assert 1.3 < max(speeds) < 1.8
        assert speeds.index(max(speeds)) < 2
        assert speeds[-1] < 1

    def test_low_latency_protocols_help_one_token_and_hurt_sixteen(self) -> None:
        low, stock = {"NCCL_PROTO": "LL"}, dict[str, str]()
        assert kimi(env=low).step_ms(1) < kimi(env=stock).step_ms(1)
        assert kimi(ORIGIN, env=low).step_ms(1) > kimi(ORIGIN, env=stock).step_ms(1)

    @pytest.mark.parametrize(
        ("better", "worse"),
        [("NCCL_ALGO=Ring", "NCCL_ALGO=Tree"), ("", "NCCL_P2P_DISABLE=1"), ("", "NCCL_MAX_NCHANNELS=2")],
    )
    def test_nccl_variables_change_the_step(self, better: str, worse: str) -> None:
        fast, slow = (dict([word.split("=")]) if word else {} for word in (better, worse))
        assert kimi(ORIGIN, env=fast).step_ms(1) < kimi(ORIGIN, env=slow).step_ms(1)

    def test_sixteen_verified_tokens_add_about_six_milliseconds_of_all_reduce(self) -> None:
        machine = kimi(env={})
        added_ms = 122 * (machine.all_reduce_ms(16) - machine.all_reduce_ms(1))
        assert 5.5 < added_ms < 7

    def test_the_custom_kernel_matters_with_nvlink_only(self) -> None:
        for gpu, matters in (("h200", True), ("rtx-pro-6000", False)):
            machine = kimi(gpu=gpu)
            without = replace(machine, custom_all_reduce=False)
            assert (machine.step_ms(1) < without.step_ms(1)) is matters

    @pytest.mark.parametrize("target", TARGETS)
    @pytest.mark.parametrize("shape", [None, ORIGIN, TreeShape(3, 1, 4)])
    def test_graphs_never_slow_a_step_down_and_a_larger_batch_never_makes_it_shorter(
        self, target: str, shape: TreeShape | None
    ) -> None:
        graphs, eager = kimi(shape, target=target), kimi(shape, target=target, graphs=False)
        assert graphs.step_ms(1) < eager.step_ms(1)
        times = [graphs.step_ms(batch, batch * 200) for batch in (1, 2, 4, 8, 16, 32, 48)]
        assert times == sorted(times)

    def test_a_batch_beyond_the_largest_captured_one_runs_eagerly(self) -> None:
        """SM-06"""
        machine = replace(kimi(), graph_batches=(1, 2, 4))
        assert machine.in_graph(4)
        assert not machine.in_graph(5)
        assert machine.step_ms(5) > machine.step_ms(4) + 10

    def test_speculation_gains_less_where_more_requests_run(self) -> None:
        """ME-13"""
        gains = [tokens_per_s(kimi(TreeShape(3, 1, 4)), batch=b) / tokens_per_s(kimi(), batch=b) for b in (1, 8, 48)]
        assert gains[0] > max(gains[1:])

    def test_a_single_gpu_reduces_nothing(self) -> None:
        assert kimi(tp_size=1, target="llama-8b").all_reduce_ms(16) == 0

    def test_a_longer_prompt_takes_longer(self) -> None:
        assert kimi().prefill_ms(4000) > kimi().prefill_ms(400) >= kimi().prefill_ms(4)

    def test_a_curve_is_hit_at_its_points_and_goes_on_beyond_them(self) -> None:
        curve = ((10, 1.0), (20, 2.0), (40, 3.0))
        assert [interpolate(curve, size) for size in (1, 10, 15, 20, 40, 60)] == [1.0, 1.0, 1.5, 2.0, 3.0, 4.0]


class TestMemory:
    @staticmethod
    def left(machine: Machine, fraction: float) -> tuple[int, float]:
        memory = memory_of(machine, mem_fraction_static=fraction, prefill_tokens=8192, max_total_tokens=None)
        return memory.kv_tokens, memory.after_graphs_gb

    def test_the_origin_storys_fraction_fits_and_a_lower_one_leaves_no_cache(self) -> None:
        """LF-03"""
        assert self.left(kimi(ORIGIN), 0.85)[0] > 10_000
        assert self.left(kimi(ORIGIN), 0.78)[0] == 0

    def test_wide_trees_over_large_batches_do_not_fit_a_high_fraction(self) -> None:
        """LF-01"""
        wide = replace(kimi(TreeShape(5, 8, 64)), graph_batches=(256,))
        assert self.left(wide, 0.93)[1] < 0
        assert self.left(replace(wide, graph_batches=(16,)), 0.93)[1] > 0
        assert graph_gb(wide, 256) == pytest.approx(256 * graph_gb(wide, 1))

    def test_the_fraction_chosen_by_itself_always_fits(self) -> None:
        for shape in (None, ORIGIN, TreeShape(5, 8, 64)):
            machine = kimi(shape)
            fraction = default_fraction(machine, prefill_tokens=8192, largest_batch=48)
            tokens, free_gb = self.left(machine, fraction)
            assert tokens > 0
            assert free_gb > 0

    def test_a_cap_on_tokens_is_kept(self) -> None:
        memory = memory_of(kimi(), mem_fraction_static=0.9, prefill_tokens=8192, max_total_tokens=5000)
        assert memory.kv_tokens == 5000


class TestTexts:
    @pytest.mark.parametrize(
        ("prompt", "kind"),
        [
            ("What would you cook for ten guests when it is hot outside and nobody wants to wait?", "chat"),
            ("Write a Python function that parses a log file and returns the slowest request.", "code"),
            (
                "A train leaves at 9 and travels 240 km. Solve for its average speed if 3 + 4 = 7 stops are made.",
                "math",
            ),
            ("Here is what the council said about the bridge and the road. " * 80, "long"),
            ("lamp otter gravel piston yellow fern cobalt wharf mitten anvil sprout quartz", "random"),
            ("Hello", "chat"),
        ],
    )
    def test_a_prompt_tells_the_kind_of_its_text(self, prompt: str, kind: str) -> None:
        assert kind_of(prompt) == kind

    def test_a_reply_is_the_same_every_time_grows_by_words_and_differs_between_prompts(self) -> None:
        reply, again = (Reply("about rivers", 1000) for _ in range(2))
        assert reply.text(200) == again.text(200)
        assert again.text(200).startswith(reply.text(50))
        assert len(reply.text(73).split()) == 73 == len(reply.ids(73))
        assert Reply("about roads", 1000).text(50) != reply.text(50)

    def test_a_reply_does_not_repeat_itself_unless_it_has_collapsed(self) -> None:
        """ME-04"""
        words = Reply("about rivers", 1000).text(512).split()
        phrases = list(zip(words, words[1:], words[2:], words[3:], strict=False))
        assert len(set(phrases)) > 0.95 * len(phrases)
        assert set(Reply("about rivers", 1000, repeat="data").text(100).split()) == {"data"}

    def test_a_drafter_path_may_name_a_drafter(self) -> None:
        assert drafter_of("./drafters/weak/", "eagle3").name == "weak"
        assert drafter_of("/models/own-draft", "eagle3").name == "eagle3"
        assert drafter_of(None, "other").name == "other"
