"""What a verdict rests on, as lines: what else differed, pins, graphs, closed regions, knobs that changed nothing.

A section without anything to say has no line.
"""

from collections.abc import Iterator, Sequence

from specsearch.analysis.closed import ClosedRegion
from specsearch.analysis.differences import Comparison, Difference
from specsearch.analysis.draft_context import DraftContext
from specsearch.analysis.graphs import GraphUse, sizes_text
from specsearch.analysis.headline import show
from specsearch.analysis.knobs import KnobGap
from specsearch.analysis.lines import bullet, listed, marked, table, wrapped
from specsearch.analysis.settings import Pin
from specsearch.analysis.verdict import Verdict


def differences(verdict: Verdict) -> Iterator[str]:
    """Settings in which the best trials differ from what they are held against, beyond the searched ones."""
    best = {contender.trial for contender in (verdict.best_speculative, verdict.best_plain) if contender}
    shown = [comparison for comparison in verdict.comparisons if comparison.trial in best]
    plain: dict[tuple[int, Difference], list[int]] = {}
    for comparison in shown:
        for difference in comparison.differences:
            plain.setdefault((comparison.trial, difference), []).append(comparison.plain)
    unknown = [comparison for comparison in shown if not comparison.settings_known]
    if plain or unknown:
        yield marked("Differs beyond the searched settings", simulated=verdict.simulated)
    for (trial, difference), numbers in plain.items():
        yield from bullet(_difference(trial, difference, numbers))
    for comparison in unknown:
        yield from bullet(f"not known for {_pair(comparison)}: a server did not tell its settings")


def _difference(trial: int, difference: Difference, plain: Sequence[int]) -> str:
    against = listed(f"t{number:04d}" for number in plain)
    note = f": {difference.note}" if difference.note else ""
    values = [_value(difference.name, value) for value in (difference.trial, difference.plain)]
    return f"{difference.name} is {values[0]} in t{trial:04d} and {values[1]} in {against}{note}"


def _pair(comparison: Comparison) -> str:
    return f"t{comparison.trial:04d} against t{comparison.plain:04d}"


def draft_context(contexts: Sequence[DraftContext], trial: int) -> Iterator[str]:
    """How a stretched drafter is accepted within its own context and beyond, for one trial."""
    for context in contexts:
        if context.trial != trial:
            continue
        yield from wrapped(f"t{trial:04d} runs its drafter beyond the context it was made for.")
        for point in dict.fromkeys((*context.within, *context.beyond)):
            sides = ((context.within, "within it"), (context.beyond, "beyond it"))
            told = (f"{lengths[point]:.2f} in requests {where}" for lengths, where in sides if point in lengths)
            yield from wrapped(f"accept length at {point}: {listed(told)}", indent="  ")


def pinned(pins: Sequence[Pin]) -> Iterator[str]:
    """What the trials after the baseline were given beyond their points."""
    values: dict[str, list[str]] = {}
    for pin in pins:
        values.setdefault(pin.name, []).append(_value(pin.name, pin.value))
    if values:
        told = ", ".join(f"{name} {' or '.join(found)}" for name, found in values.items())
        yield from wrapped(f"Pinned to what the baseline resolved to: {told}.")


def graphs(verdict: Verdict) -> Iterator[str]:
    """The captured graphs of the best trial and the baseline, and how much of the decoding ran in them."""
    uses = {use.trial: use for use in verdict.graphs}
    roles = (verdict.recommended, verdict.best_speculative, verdict.start_baseline)
    shown = [uses[trial] for trial in dict.fromkeys(c.trial for c in roles if c) if trial in uses]
    if not any(use.is_told for use in shown):
        return
    yield marked("Graphs", simulated=verdict.simulated)
    rows = [row for use in shown for row in _graph_rows(use)]
    head = ("trial", "captured", "batch sizes", "seconds", "GB", "decode passes in one")
    yield from table(head, rows, left=(0, 1, 2))


def _graph_rows(use: GraphUse) -> Iterator[tuple[str, ...]]:
    name, share = f"t{use.trial:04d}", "not counted" if use.used_share is None else f"{use.used_share:.0%}"
    for capture in use.captured:
        numbers = ("–" if number is None else f"{number:.2f}" for number in (capture.seconds, capture.memory_gb))
        yield name, capture.name, sizes_text(capture.sizes), *numbers, share
        name = share = ""
    if not use.captured:
        yield name, "not told", "", "", "", share
    elif use.draft_captured is False:
        yield "", "no draft graph", "", "", "", ""


def closed(regions: Sequence[ClosedRegion]) -> Iterator[str]:
    """What trials taught, and what was not launched because of it."""
    if regions:
        yield "Closed by what a trial taught"
    for region in regions:
        why = f" ({region.reason})" if region.reason else ""
        yield from bullet(
            f'after t{region.trial:04d}{why} "{region.keeps}" holds: {_not_launched(region)}; {region.because}'
        )


def _not_launched(region: ClosedRegion) -> str:
    by_hand = f", {region.rejected_by_hand} given by hand among them" if region.rejected_by_hand else ""
    if region.not_launched is None:
        return f"what violates it was not launched{by_hand}"
    return f"{region.not_launched:,} of the space's {region.configurations:,} configurations were not launched{by_hand}"


def without_effect(verdict: Verdict) -> Iterator[str]:
    """The searched knobs that changed nothing beyond the noise within a launch."""
    silent = [knob for knob in verdict.knobs if not knob.measurable]
    if not silent:
        return
    floor = f"; repeats of the baseline differ by {verdict.noise_floor:.1%}" if verdict.noise_floor is not None else ""
    yield from wrapped(f"{marked('No measurable effect', simulated=verdict.simulated)}{floor}")
    yield from (line for knob in silent for line in bullet(_gap(knob)))


def _gap(knob: KnobGap) -> str:
    values = [_spelled(value) for value in (knob.best, knob.worst)]
    times = f" at the most, in {knob.comparisons} comparisons" if knob.comparisons > 1 else ""
    pair = f"{values[0]} (t{knob.best_trial:04d}) over {values[1]} (t{knob.worst_trial:04d})"
    return f"{knob.knob}: {pair} is {show(knob.gap)}{times}, all else equal"


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, text: str) -> str:
    """A value; a list of batch sizes as its range."""
    words = text.split()
    is_list = name.endswith("bs") and len(words) > 1 and all(word.isdecimal() for word in words)
    return sizes_text([int(word) for word in words]) if is_list else text
