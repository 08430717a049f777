"""A verdict as lines of plain text, at most 100 columns wide where words allow it."""

import re
from collections.abc import Iterator, Sequence

from specsearch.analysis import text_evidence as evidence
from specsearch.analysis.headline import Finding, show, show_short
from specsearch.analysis.limits import STEP_COST, Limits
from specsearch.analysis.lines import WIDTH, bullet, decimals, joined, marked, table, trials, wrap_command, wrapped
from specsearch.analysis.outcomes import Outcomes, TimeSpent
from specsearch.analysis.stability import Ratio
from specsearch.analysis.standing import Contender
from specsearch.analysis.verdict import NoVerdict, StudyFacts, Verdict
from specsearch.metrics import METRICS

__all__ = ["WIDTH", "no_verdict_lines", "verdict_lines", "wrap_command"]

_MOST_HINTS = 4


def verdict_lines(verdict: Verdict, *, top: int = 10) -> list[str]:
    """The whole page; `top` trials of the ranking are shown."""
    sections = (
        _opening(verdict),
        _contenders(verdict),
        _break_even(verdict),
        evidence.differences(verdict),
        _limits(verdict.limits, verdict.best_speculative) if verdict.limits else [],
        _winners(verdict),
        _ranking(verdict, top),
        evidence.without_effect(verdict),
        evidence.graphs(verdict),
        evidence.pinned(verdict.pins),
        _outcomes(verdict.outcomes, simulated=verdict.simulated),
        evidence.closed(verdict.closed_regions),
        _warnings(verdict),
        _commands(verdict),
    )
    return joined(sections)


def no_verdict_lines(said: NoVerdict) -> list[str]:
    """What was measured in a study of which no trial can be ranked; the reason is the error's business."""
    if not said.measured:
        return []
    sections = (
        _heading(said.facts, said.facts.name, said.objective, said.outcomes, simulated=said.simulated),
        _measured(said),
        _outcomes(said.outcomes, simulated=said.simulated),
        evidence.closed(said.closed_regions),
    )
    return joined(sections)


def _opening(verdict: Verdict) -> Iterator[str]:
    engine = f"{verdict.engine} {verdict.engine_version or ''}".strip()
    name = f"{verdict.facts.name} · {engine}"
    yield from _heading(verdict.facts, name, verdict.objective, verdict.outcomes, simulated=verdict.simulated)
    yield ""
    yield from wrapped(verdict.headline)
    if verdict.confounded:
        yield from wrapped(verdict.confounded)


def _heading(facts: StudyFacts, name: str, objective: str, outcomes: Outcomes, *, simulated: bool) -> Iterator[str]:
    yield from wrapped(f"{name} · {objective}")
    if simulated:
        yield from wrapped(
            "SIMULATED: made by the simulated engine, a model; these numbers say nothing about real hardware."
        )
    if facts.ended:
        yield from wrapped(f"Ended: {facts.ended}.")
    if facts.unfinished:
        many = "s" if outcomes.proposals != 1 else ""
        running = ", ".join(f"t{number:04d}" for number in facts.unfinished)
        verb = "have" if len(facts.unfinished) > 1 else "has"
        yield from wrapped(f"Unfinished: {outcomes.proposals} trial{many} so far; {running} {verb} no result yet.")


def _measured(said: NoVerdict) -> Iterator[str]:
    yield marked("Measured, and not to be ranked", simulated=said.simulated)
    unit = METRICS[said.metric].unit or said.metric
    rows = [
        (
            f"t{trial.trial:04d}",
            ", ".join(_bare(said.metric, value) for value in trial.values.values()) or "–",
            " and ".join(f"{bound} ({value})" for bound, value in trial.broken_bounds.items()) or "– (no score)",
            trial.name,
        )
        for trial in said.measured
    ]
    yield from table(("trial", unit, "breaks", "configuration"), rows, left=(0, 2, 3))


def _contenders(verdict: Verdict) -> Iterator[str]:
    rows = (
        ("start baseline", verdict.start_baseline),
        ("best plain", verdict.best_plain),
        ("best speculative", verdict.best_speculative),
    )
    intervals = False
    for role, contender in rows:
        if contender is None:
            yield f"  {role:<16}  –"
            continue
        if contender is verdict.best_plain and contender == verdict.start_baseline:
            yield f"  {role:<16}  the start baseline"
            continue
        yield from wrapped(contender.title, indent=" " * 20, first=f"  {role:<16}  ")
        against = list(_against(verdict, contender))
        intervals = intervals or any(ratio.known for _, ratio in against)
        parts = [_value(verdict, contender), *(f"{show(ratio)} {what}" for what, ratio in against)]
        yield from wrapped(" · ".join(parts), indent=" " * 20)
    if intervals:
        yield from wrapped(verdict.intervals, indent="  ")


def _against(verdict: Verdict, contender: Contender) -> Iterator[tuple[str, Ratio]]:
    start, plain = verdict.start_baseline, verdict.best_plain
    if start and contender.trial != start.trial and contender.over_start:
        yield "vs start", contender.over_start
    if plain and not contender.plain and plain != start and contender.over_best_plain:
        yield "vs best plain", contender.over_best_plain


def _break_even(verdict: Verdict) -> Iterator[str]:
    best = verdict.best_speculative
    if best is None:
        return
    if not verdict.step_costs:
        yield "Break-even: not known, accept length or a plain run is missing."
        return
    yield from wrapped(
        f"{_title(verdict, 'Break-even')} of t{best.trial:04d} against plain decoding, {verdict.matched_plain}"
    )
    rows = [
        (
            cost.load_point,
            decimals(cost.accept_length),
            decimals(cost.break_even),
            decimals(cost.margin, sign="+"),
            show(cost.speed_up),
            "" if cost.speed_up.queue_limited else cost.speed_up.finding,
        )
        for cost in verdict.step_costs
    ]
    yield from table(("load point", "accept length", "break-even", "distance", "speed-up", ""), rows, left=(0, 4, 5))
    if len(verdict.step_costs) > 1:
        worst = min(verdict.step_costs, key=lambda cost: cost.speed_up.value)
        yield f"  worst case: {show_short(worst.speed_up)} at {worst.load_point}"
    yield from evidence.draft_context(verdict.draft_contexts, best.trial)


def _limits(limits: Limits, best: Contender | None) -> Iterator[str]:
    name = "the trial" if best is None else f"t{best.trial:04d}"
    compared = f"Compared with {name} as it is:"
    step = ("a step as cheap as a plain one", limits.step_cost_room)
    if limits.side is None or limits.acceptance_room is None:
        yield from wrapped(f"What limits: not known without num_steps. {compared} {_gains(limits, [step])}.")
    else:
        accept = ("every draft accepted", limits.acceptance_room)
        rooms = [step, accept] if limits.side == STEP_COST else [accept, step]
        side = "the step cost" if limits.side == STEP_COST else "acceptance"
        yield from wrapped(f"What limits: {side}. {compared} {_gains(limits, rooms)}.")
    if limits.to_break_even:
        yield from wrapped(f"{limits.to_break_even[0].upper()}{limits.to_break_even[1:]}.")
    if limits.next_steps:
        yield f"To try next with {name}:"
    for hint in limits.next_steps[:_MOST_HINTS]:
        yield from bullet(hint)


def _gains(limits: Limits, rooms: Sequence[tuple[str, float]]) -> str:
    """How much faster it would be at the two limits, the one with more room first, and by two everyday gains."""
    (what, factor), *others = rooms
    bounds = [f"{what} would be {factor:.2f}× as fast", *(f"{other} {room:.2f}×" for other, room in others)]
    return (
        f"{', '.join(bounds)}; half a token more accepted per step {limits.gain_from_more_accepted:.2f}×, "
        f"a step 10% cheaper {limits.gain_from_cheaper_step:.2f}×"
    )


def _winners(verdict: Verdict) -> Iterator[str]:
    if not verdict.winners:
        return
    yield _title(verdict, "Fastest at each load point")
    best = verdict.recommended
    rows = [
        (
            winner.load_point,
            f"t{winner.contender.trial:04d}",
            _number(verdict, winner.contender),
            show_short(winner.contender.over_best_plain),
            f"{_number(verdict, winner.best)}{' !' if winner.best_breaks_bound else ''}",
            show_short(winner.best.over_best_plain),
            winner.contender.name,
        )
        for winner in verdict.winners
    ]
    unit = METRICS[verdict.metric].unit or verdict.metric
    name = f"t{best.trial:04d}"
    head = ("load point", "winner", unit, "vs best plain", f"{name} here", f"{name} vs plain", "configuration")
    yield from table(head, rows, left=(0, 1, 6))
    if any(winner.best_breaks_bound for winner in verdict.winners):
        yield "  ! breaks a bound of the objective there, which every winner keeps."


def _ranking(verdict: Verdict, top: int) -> Iterator[str]:
    shown = verdict.ranking[:top]
    if not shown:
        return
    of = f" of {len(verdict.ranking)} ranked" if len(verdict.ranking) > len(shown) else ""
    yield _title(verdict, f"Top {len(shown)}{of}")
    rows = [
        (
            str(place),
            f"t{contender.trial:04d}",
            _number(verdict, contender),
            show_short(contender.over_start),
            decimals(contender.accept_length),
            _about(contender, decimals(contender.break_even)),
            _about(contender, decimals(contender.margin, sign="+")),
            contender.name,
        )
        for place, contender in enumerate(shown, start=1)
    ]
    unit = METRICS[verdict.metric].unit or verdict.metric
    head = ("#", "trial", unit, "vs start", "accept", "break-even", "distance", "configuration")
    yield from table(head, rows, left=(1, 7))
    if any(contender.predicted for contender in shown):
        yield from wrapped(
            "~ nobody measured plain decoding with the same other knobs; held against the nearest plain run.",
            indent="  ",
        )
    if any(ratio and ratio.queue_limited for ratio in _short_ratios(verdict, shown)):
        yield "  q: requests waited to be admitted, so what is compared is also how many a server runs at once"
    yield from _short_forms([contender.name for contender in shown])


def _short_ratios(verdict: Verdict, shown: Sequence[Contender]) -> Iterator[Ratio | None]:
    """Every ratio of the page that is shown without its interval."""
    yield from (contender.over_start for contender in shown)
    yield from (cost.speed_up for cost in verdict.step_costs)
    for winner in verdict.winners:
        yield from (winner.contender.over_best_plain, winner.best.over_best_plain)


def _short_forms(names: Sequence[str]) -> Iterator[str]:
    """What the abbreviations mean that occur in these configurations."""
    words = [word for name in names for word in name.split()]
    triple = next((word for word in words if _TRIPLE.fullmatch(word)), None)
    meanings = [f"{triple}: steps/top-k/draft tokens"] if triple else []
    meanings += [f"{word}: {meaning}" for word, meaning in _SHORT_FORMS.items() if word in words]
    if meanings:
        yield from wrapped("; ".join(meanings), indent="  ")


_TRIPLE = re.compile(r"\d+/\d+/\d+")
_SHORT_FORMS = {"eager": "no CUDA graphs", "no-car": "no custom all-reduce"}


def _outcomes(outcomes: Outcomes, *, simulated: bool) -> Iterator[str]:
    counts = " + ".join(f"{count} {status}" for status, count in outcomes.counts.items())
    retried = outcomes.attempts - outcomes.proposals
    more = f"; {retried} more {'attempts were' if retried > 1 else 'attempt was'} a retry" if retried else ""
    yield from wrapped(f"{marked('Trials', simulated=simulated)}: {outcomes.proposals} proposed = {counts}{more}.")
    for failure in outcomes.failures:
        what = f"{failure.status} {failure.reason} × {failure.attempts} ({trials(failure.trials)})"
        yield from bullet(f"{what}: {failure.advice}")
    if outcomes.time_spent.total_s > 0:
        yield from wrapped(_time(outcomes.time_spent))


def _time(spent: TimeSpent) -> str:
    phases = sorted(spent.by_phase_s.items(), key=lambda entry: -entry[1])
    shares = [f"{name} {seconds / spent.total_s:.0%}" for name, seconds in phases if seconds / spent.total_s >= 0.01]
    lost = f"; {spent.lost_share:.0%} went into attempts without a usable number" if spent.lost_s else ""
    return f"Time: {_hours(spent.total_s)} {'GPU-hours' if spent.on_gpus else 'hours'}: {', '.join(shares)}{lost}."


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.2f}" if hours >= 0.1 else f"{hours:.2g}"


def _warnings(verdict: Verdict) -> Iterator[str]:
    if verdict.warnings:
        yield "Warnings"
    for warning in verdict.warnings:
        yield from bullet(warning)


def _commands(verdict: Verdict) -> Iterator[str]:
    """How to run the recommended trial; where nothing is decided also the one it is to be compared with."""
    best, other = verdict.recommended, verdict.best_speculative
    yield from _command(verdict, best)
    if verdict.finding in (Finding.NO_DIFFERENCE, Finding.QUEUE_LIMITED) and other is not None:
        yield ""
        yield from _command(verdict, other)
    if verdict.facts.results:
        yield ""
        yield f"Rows and logs: {verdict.facts.results}"


def _command(verdict: Verdict, contender: Contender) -> Iterator[str]:
    yield from wrapped(f"{_title(verdict, 'Launch command')} of {contender.title}")
    yield from wrap_command(contender.command) if contender.command else ("  not known",)


def _title(verdict: Verdict, text: str) -> str:
    return marked(text, simulated=verdict.simulated)


def _value(verdict: Verdict, contender: Contender) -> str:
    return METRICS[verdict.metric].format(contender.objective)


def _number(verdict: Verdict, contender: Contender) -> str:
    return _bare(verdict.metric, contender.objective)


def _bare(metric: str, value: float | None) -> str:
    return METRICS[metric].format(value).removesuffix(f" {METRICS[metric].unit}")


def _about(contender: Contender, number: str) -> str:
    return f"~{number}" if contender.predicted else number
