"""What the check of drafters protects from: the real SGLang runs an EAGLE-3 head as EAGLE without a word."""

import re
from dataclasses import fields

import pytest

from specsearch.config import EngineConfig
from tests.real.studies import Study, needs_sglang, not_in_a_part

pytestmark = [
    pytest.mark.real_sglang,
    needs_sglang,
    not_in_a_part,
    pytest.mark.skipif(
        "check_drafter" not in {field.name for field in fields(EngineConfig)},
        reason="engine.check_drafter, which lets a refused drafter run, is not there",
    ),
]

# Lines that differ between any two servers.
_OF_EVERY_SERVER = ("server_args=", "Decode batch", "Prefill batch", "INFO: ")


def said(log: str) -> set[str]:
    """What a server's own log lines say until it has decoded the last token, numbers aside."""
    lines = re.findall(r"^\[\d{4}-[^\]]*\] (.*)$", log[: log.rindex("Decode batch")], re.MULTILINE)
    return {re.sub(r"-?\d+(\.\d+)?", "N", line) for line in lines if not line.startswith(_OF_EVERY_SERVER)}


def test_an_eagle3_head_runs_as_eagle_where_nobody_checks_it(unchecked: Study) -> None:
    row = unchecked.trial_of(speculative_algorithm="EAGLE")
    assert row["status"] == "ok"
    assert dict(row["effective"])["speculative_algorithm"] == "EAGLE"
    assert unchecked.exit_code == 0, unchecked.output


def test_its_drafts_are_accepted_far_less_often_and_yet_often_enough_to_pass_for_a_weak_drafter(
    unchecked: Study, study: Study
) -> None:
    """So no bound on the accept length would have found it."""
    wrong = unchecked.trial_of(speculative_algorithm="EAGLE")["accept_length"]
    right = study.trial_of(speculative_algorithm="EAGLE3", draft_model="/eagle3", eagle_topk=1, kind="seed")
    assert 1.05 < wrong < right["accept_length"] - 0.3


def test_the_server_says_nothing_that_it_does_not_say_of_the_right_algorithm(unchecked: Study, study: Study) -> None:
    wrong = unchecked.trial_of(speculative_algorithm="EAGLE")
    right = study.trial_of(speculative_algorithm="EAGLE3", draft_model="/eagle3", eagle_topk=1, kind="seed")
    assert len(said(study.log_of(right))) > 20
    assert said(unchecked.log_of(wrong)) - said(study.log_of(right)) == set()


def test_its_tokens_are_those_of_plain_decoding_all_the_same(unchecked: Study) -> None:
    digests = {
        row["trial"]: [
            request["text_digest"] for request in unchecked.table("requests") if request["trial"] == row["trial"]
        ]
        for row in unchecked.trials_of(status="ok")
    }
    assert len(digests) == 2
    assert len({tuple(sorted(found)) for found in digests.values()}) == 1


def test_nextn_is_found_to_be_eagle_by_another_name(unchecked: Study) -> None:
    row = unchecked.trial_of(speculative_algorithm="NEXTN")
    assert (row["status"], row["reason"]) == ("skipped_duplicate", "same_effective_configuration")
    assert "--speculative-algorithm NEXTN" in row["command"]
    assert row["effective_key"] == unchecked.trial_of(speculative_algorithm="EAGLE")["effective_key"]
