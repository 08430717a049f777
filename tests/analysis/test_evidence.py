"""What a verdict rests on is on the page where there is something to say, and always in the JSON."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from specsearch.analysis.headline import Finding
from specsearch.analysis.text import WIDTH, verdict_lines
from specsearch.analysis.verdict import StudyFacts, Verdict, verdict
from specsearch.objective import Objective
from specsearch.trial import Capture, TrialKind, TrialResult, TrialStatus
from tests.storage.made_rows import PLAIN_POINT, TREE_POINT, baseline, repeats, trial

FACTS = StudyFacts(name="kimi", results="results/kimi")
CHAIN = {name: value for name, value in TREE_POINT.items() if not name.startswith("env.")} | {"eagle_topk": 1}
SETTINGS = {"attention_backend": "triton", "disable_overlap_schedule": "false"}
SYNCHRONOUS = {**SETTINGS, "disable_overlap_schedule": "true"}
TITLES = (
    "Differs beyond",
    "Confounded",
    "Graphs",
    "Pinned",
    "Closed by",
    "No measurable effect",
    "q: ",
    "drafter beyond",
)


def judged(*rows: TrialResult, objective: Objective | None = None) -> Verdict:
    return verdict(rows, objective or Objective(), FACTS)


def page(*rows: TrialResult, objective: Objective | None = None) -> str:
    return "\n".join(verdict_lines(judged(*rows, objective=objective)))


def words(*rows: TrialResult) -> str:
    return " ".join(page(*rows).split())


def told(row: TrialResult, settings: Mapping[str, str] = SETTINGS) -> TrialResult:
    return replace(row, effective=settings)


def chain(number: int = 1, speeds: tuple[float, ...] = (131.0, 130.0, 132.0), **more: object) -> TrialResult:
    return trial(number, CHAIN, repeats(speeds, accept=2.6), effective=SETTINGS, **more)


PLAIN = told(baseline())


def test_a_study_with_nothing_to_say_has_no_section_for_it() -> None:
    said = page(PLAIN, chain())
    assert [title for title in TITLES if title in said] == []


def test_a_confounded_verdict_says_so_in_one_sentence_below_it_and_lists_the_setting() -> None:
    rows = (PLAIN, told(chain(), SYNCHRONOUS))
    lines = page(*rows).splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("Confounded: "))
    assert lines[head - 1].endswith("0.81.")  # the verdict's last word
    assert (
        "Confounded: beyond the searched settings, t0001 also differs from t0000 in disable_overlap_schedule."
        in words(*rows)
    )
    assert "- disable_overlap_schedule is true in t0001 and false in t0000: one of the two prepares" in words(*rows)


def test_the_plain_runs_that_a_trial_is_held_against_share_a_sentence_where_they_share_the_difference() -> None:
    faster = told(trial(2, {**PLAIN_POINT, "env.NCCL_ALGO": "Ring"}, repeats((95.0, 95.1, 95.2))))
    rows = (PLAIN, faster, told(chain(), SYNCHRONOUS))
    assert judged(*rows).confounded == (
        "Confounded: beyond the searched settings, t0001 also differs from t0002 and t0000 in disable_overlap_schedule."
    )
    assert words(*rows).count("disable_overlap_schedule is true in t0001 and false in t0002 and t0000") == 1


def test_every_ranked_speculative_trial_is_compared_in_the_json() -> None:
    slower = replace(told(chain(2, (100.0, 100.1, 99.9)), SYNCHRONOUS), point={**CHAIN, "num_steps": 2})
    found = json.loads(json.dumps(judged(PLAIN, chain(), slower).to_json()))["comparisons"]
    assert [(c["trial"], c["plain"], [d["name"] for d in c["differences"]]) for c in found] == [
        (1, 0, []),
        (2, 0, ["disable_overlap_schedule"]),
    ]
    assert all(c["settings_known"] and not c["environment_known"] for c in found)


def test_a_server_that_told_nothing_leaves_the_comparison_unknown() -> None:
    said = page(PLAIN, replace(chain(), effective={}))
    assert "not known for t0001 against t0000: a server did not tell its settings" in said
    assert "Confounded" not in said


def test_pins_are_one_sentence_with_long_lists_as_ranges() -> None:
    given = {"cuda_graph_bs": "1 2 4 8 12", "page_size": "1", "mem_fraction_static": "0.85"}
    rows = (PLAIN, chain(pins=given), chain(2, pins={**given, "mem_fraction_static": "0.8"}))
    assert (
        "Pinned to what the baseline resolved to: cuda_graph_bs 1–12 (5 sizes), mem_fraction_static 0.8 or 0.85, "
        "page_size 1."
    ) in words(*rows)
    assert [(pin.name, pin.trials) for pin in judged(*rows).pins][:2] == [
        ("cuda_graph_bs", (1, 2)),
        ("mem_fraction_static", (2,)),
    ]


def test_changes_by_the_server_are_one_line_for_each_setting() -> None:
    """SM-02: not one for each trial."""
    rows = [chain(n, overridden=(f"num_draft_tokens: asked {4 * n}, runs 4",)) for n in range(2, 7)]
    said = words(PLAIN, *rows)
    assert said.count("the server changed") == 1
    assert (
        "the server changed num_draft_tokens: asked 8, runs 4; asked 12, runs 4; asked 16, runs 4; and 2 more "
        "(5 trials, first t0002)"
    ) in said
    assert len(judged(PLAIN, *rows).overrides) == 5


VERIFY = Capture("target verify", 1.4, 0.08, 111.0, (1, 2, 4, 8, 16))


def test_graphs_of_the_best_and_of_the_baseline_are_proved() -> None:
    plain = replace(PLAIN, captures=(Capture("target decode", 2.37, 0.04, 111.0, (1, 2)),))
    row = replace(chain(), captures=(VERIFY, Capture("draft decode", 9.68)))
    measured = tuple(replace(m, values={**m.values, "cuda_graph_share": 0.98}) for m in row.measurements)
    lines = [line.split() for line in page(plain, replace(row, measurements=measured)).splitlines()]
    assert ["t0001", "target", "verify", "1–16", "(5", "sizes)", "1.40", "0.08", "98%"] in lines
    assert ["draft", "decode", "–", "9.68", "–"] in lines
    assert ["t0000", "target", "decode", "1", "2", "2.37", "0.04", "not", "counted"] in lines


def test_a_draft_that_runs_without_a_graph_is_said() -> None:
    row = replace(chain(), captures=(VERIFY,))
    assert "no draft graph" in page(PLAIN, row)
    assert "no draft graph" not in page(PLAIN, replace(chain(), captures=(VERIFY, Capture("draft decode"))))


def test_the_json_has_the_graphs_of_every_measured_trial() -> None:
    found = json.loads(json.dumps(judged(PLAIN, replace(chain(), captures=(VERIFY,))).to_json()))["graphs"]
    assert [(use["trial"], use["draft_captured"], len(use["captured"])) for use in found] == [
        (0, None, 0),
        (1, False, 1),
    ]
    assert found[1]["captured"][0]["sizes"] == [1, 2, 4, 8, 16]


def test_a_closed_region_is_on_the_page_with_its_reason() -> None:
    """LF-05."""
    taught = trial(
        2,
        TREE_POINT,
        status=TrialStatus.INFEASIBLE,
        reason="arg_rejected",
        detail="ValueError: no",
        lesson="eagle_topk <= 1",
    )
    assert (
        'after t0002 (arg_rejected) "eagle_topk <= 1" holds: what violates it was not launched; ValueError: no'
    ) in words(PLAIN, chain(), taught)


def test_what_a_measured_trial_taught_is_said_once() -> None:
    same = "not custom_all_reduce"
    row = replace(chain(), lesson=same, warnings=(f"from here on {same} holds", "an odd one"))
    said = words(PLAIN, row)
    assert said.count(same) == 1
    assert "an odd one (t0001)" in said


def test_a_knob_without_effect_is_named_with_its_widest_gap() -> None:
    """SM-03."""
    twin = told(trial(2, {**PLAIN_POINT, "page_size": 64}, repeats((90.1, 90.4, 89.8))))
    said = words(told(baseline(page_size=1)), twin, chain())
    assert "No measurable effect; repeats of the baseline differ by 0.7%" in said
    assert "- page_size: 64 (t0002) over 1 (t0000) is 1.001× (" in said
    assert "), all else equal" in said


MANY = Objective(at=("chat@64",))


def busy(number: int, speeds: tuple[float, ...], *, waits: bool, accept: float | None = None) -> TrialResult:
    """Measured at 1 and at 64 requests in flight by a server that runs 48 at once, if it says so."""
    measured = repeats(speeds, accept=accept) + repeats([10 * s for s in speeds], accept=accept, concurrency=64)
    kind = TrialKind.SEARCH if accept else TrialKind.BASELINE
    settings = {**SETTINGS, "max_running_requests": "48" if waits else "64"}
    point = CHAIN if accept else PLAIN_POINT
    return trial(number, point, measured, kind=kind, effective=settings, queue_limited=waits)


@pytest.mark.parametrize("waits", [(True, False), (False, True)])
def test_requests_that_waited_on_one_side_decide_nothing(waits: tuple[bool, bool]) -> None:
    """SM-04: 48 of 64 requests against all of them compares admission."""
    rows = busy(0, (90.0, 90.1), waits=waits[0]), busy(1, (131.0, 131.1), waits=waits[1], accept=2.6)
    said = judged(*rows, objective=MANY)
    assert said.finding == Finding.QUEUE_LIMITED
    assert said.recommended.trial == 0
    which = f"requests waited to be admitted in t{waits.index(True):04d} only, so this compares limits, not speed."
    assert which in said.headline
    assert said.headline.endswith("Raise max_running_requests, or free memory for it, and run both again.")
    assert page(*rows, objective=MANY).count("Launch command") == 2


def test_a_speed_up_where_requests_waited_is_nowhere_a_plain_number() -> None:
    """SM-04."""
    rows = busy(0, (90.0, 90.1), waits=True), busy(1, (131.0, 131.1), waits=True, accept=2.6)
    said = judged(*rows, objective=MANY)
    assert said.finding == Finding.FASTER  # both wait for the same limit
    assert "queue-limited) as fast as" in said.headline
    found = json.loads(json.dumps(said.to_json()))
    assert [cost["speed_up"]["queue_limited"] for cost in found["step_costs"]] == [False, True]
    assert found["recommended"]["over_start"]["queue_limited"] is True
    assert found["recommended"]["queue_limited"] is True
    text = page(*rows, objective=MANY)
    assert "1.46× q" in text
    assert "q: requests waited to be admitted" in text
    assert next(line for line in text.splitlines() if line.startswith("  chat@64 ")).endswith("queue-limited)")


def test_the_load_points_at_which_nothing_waited_are_compared_as_ever() -> None:
    rows = busy(0, (90.0, 90.1), waits=True), busy(1, (131.0, 131.1), waits=False, accept=2.6)
    said = judged(*rows, objective=Objective(at=("chat@1",)))
    assert said.finding == Finding.FASTER
    assert not said.recommended.queue_limited


def test_a_stretched_drafter_is_accepted_apart_within_its_context_and_beyond() -> None:
    """LF-14."""
    apart = {"accept_length_within_draft_context": 2.85, "accept_length_beyond_draft_context": 1.31}
    measured = repeats((131.0, 130.0), accept=2.6, **apart)
    row = trial(1, CHAIN, measured, effective=SETTINGS, draft_context_overridden=True)
    said = words(PLAIN, row)
    assert "t0001 runs its drafter beyond the context it was made for." in said
    assert "accept length at chat@1: 2.85 in requests within it and 1.31 in requests beyond it" in said
    (context,) = judged(PLAIN, row).draft_contexts
    assert context.beyond == {"chat@1": pytest.approx(1.31)}


def test_no_line_of_the_evidence_is_wider_than_the_page() -> None:
    long_setting = "a_setting_with_a_name_of_its_own_" * 2
    row = replace(
        chain(),
        effective={**SETTINGS, long_setting: "with words " * 20},
        pins=dict.fromkeys(("cuda_graph_bs", "page_size", "context_length", "random_seed"), "1 2 4 8 16"),
        captures=(VERIFY, Capture("a graph with quite a long name of its own", 1.0, 2.0, 3.0, (1,))),
        overridden=(f"{long_setting}: asked {'this ' * 20}, runs {'that ' * 20}",),
    )
    assert [line for line in page(PLAIN, row).splitlines() if len(line) > WIDTH] == []
