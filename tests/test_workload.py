"""What is asked of the engine, and the workloads that come with the package."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import specsearch
from specsearch.loadgen.degenerate import collapsed_share
from specsearch.workload import RANDOM, LoadPoint, Workload

SHIPPED = Path(specsearch.__file__).parent / "workloads"
HOW_MANY = {"chat": 24, "code": 20, "math": 20, "long_context": 8}
# Shortest and longest prompt in words.
WORDS = {"chat": (5, 300), "code": (10, 400), "math": (15, 200), "long_context": (1500, 2500)}


def shipped(name: str) -> list[str]:
    lines = (SHIPPED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert all(set(row) == {"prompt"} for row in rows)
    return [row["prompt"] for row in rows]


def everything() -> Iterator[str]:
    for name in HOW_MANY:
        yield from shipped(name)


def first_words(prompt: str, count: int = 3) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", prompt.lower())[:count])


def test_the_shipped_workloads_are_the_ones_named_here() -> None:
    assert {path.stem for path in SHIPPED.glob("*.jsonl")} == set(HOW_MANY)


@pytest.mark.parametrize("name", HOW_MANY)
def test_a_shipped_workload_has_its_prompts_at_their_lengths(name: str) -> None:
    """ME-05: text by default, never random words."""
    prompts = shipped(name)
    shortest, longest = WORDS[name]
    assert len(prompts) == len(set(prompts)) == HOW_MANY[name]
    assert all(shortest <= len(prompt.split()) <= longest for prompt in prompts), [len(p.split()) for p in prompts]
    assert all(prompt == prompt.strip() for prompt in prompts)


def test_no_two_shipped_prompts_begin_alike() -> None:
    """ME-07: a common beginning would be answered from the prefix cache."""
    beginnings = [first_words(prompt) for prompt in everything()]
    assert len(set(beginnings)) == len(beginnings)


def test_no_shipped_prompt_repeats_itself() -> None:
    """Sequences of eight words that come twice are under two in a hundred."""
    for prompt in everything():
        words = re.findall(r"\w+", prompt.lower())
        runs = [tuple(words[start : start + 8]) for start in range(len(words) - 7)]
        assert len(set(runs)) >= 0.98 * len(runs), prompt[:80]
        assert collapsed_share(prompt) < 0.05, prompt[:80]


def test_long_documents_share_no_passage() -> None:
    seen: dict[tuple[str, ...], int] = {}
    for number, prompt in enumerate(shipped("long_context")):
        words = re.findall(r"\w+", prompt.lower())
        for start in range(len(words) - 11):
            assert seen.setdefault(tuple(words[start : start + 12]), number) == number


def point(prompts: int, **fields: int) -> LoadPoint:
    texts = tuple(f"Question {number} of the day" for number in range(prompts))
    return LoadPoint(Workload("day", texts), **({"concurrency": 1} | fields))


@pytest.mark.parametrize(
    ("load_point", "requests"),
    [
        (point(5), 5),
        (point(5, concurrency=4), 8),
        (point(5, requests=3), 3),
        (point(5, requests=12), 12),
    ],
)
def test_a_repeat_sends_every_prompt_once_and_at_least_twice_the_concurrency(
    load_point: LoadPoint, requests: int
) -> None:
    assert load_point.requests_per_repeat == requests
    assert len(list(load_point.prompts())) == requests


def test_a_prompt_that_comes_round_again_begins_differently() -> None:
    """ME-07: else the second round would be answered from the cache of the first."""
    prompts = list(point(3, requests=9).prompts())
    assert prompts[:3] == ["Question 0 of the day", "Question 1 of the day", "Question 2 of the day"]
    assert prompts[3] == "(4) Question 0 of the day"
    assert prompts[7] == "(8) Question 1 of the day"
    assert len({prompt.split()[0] for prompt in prompts[3:]}) == 6


def test_repeats_send_the_same_prompts() -> None:
    load_point = point(3, requests=7)
    assert list(load_point.prompts()) == list(load_point.prompts())


def test_the_digest_changes_with_anything_that_changes_the_text() -> None:
    """ME-05: rows of different workloads are told apart."""
    base = Workload("a", ("one", "two"))
    others = [
        Workload("a", ("two", "one")),
        Workload("a", ("one", "two", "three")),
        Workload("a", ("one", "two"), temperature=0.5),
        Workload("a", ("one", "two"), kind=RANDOM),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 5
    assert Workload("renamed", ("one", "two")).digest == base.digest
    assert re.fullmatch("[0-9a-f]{12}", base.digest)


def test_a_load_point_is_named_by_workload_and_concurrency() -> None:
    assert point(3, concurrency=8).name == "day@8"
