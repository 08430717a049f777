"""What adaptive speculation and algorithms without steps do to numbers that look at the triple."""

from dataclasses import replace
from pathlib import Path

from specsearch.analysis.speedup import most_tokens_per_step
from specsearch.config import load_study, to_fingerprint_fields
from specsearch.trial import short_name

CHAIN = {"speculative_algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}


def test_the_longest_accept_length_is_not_known_where_the_steps_move() -> None:
    assert most_tokens_per_step(CHAIN) == 4
    assert most_tokens_per_step({**CHAIN, "speculative_adaptive": True}) is None
    assert most_tokens_per_step({**CHAIN, "speculative_adaptive": False}) == 4


def test_an_algorithm_without_steps_accepts_up_to_its_draft_tokens_and_is_named_by_them() -> None:
    ngram = {"speculative_algorithm": "NGRAM", "num_steps": "unset", "eagle_topk": "unset", "num_draft_tokens": 8}
    assert most_tokens_per_step(ngram) == 8
    assert short_name(ngram) == "NGRAM 8"


def test_whether_drafters_are_checked_changes_no_number() -> None:
    study = load_study(Path(__file__).parent.parent / "search_spaces" / "quickstart.yaml")
    unchecked = replace(study, engine=replace(study.engine, check_drafter=False))
    assert to_fingerprint_fields(unchecked) == to_fingerprint_fields(study)
