"""The first sentences of a verdict: whether speculation pays, and where that is known."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from specsearch.analysis.checks import broken_bounds
from specsearch.analysis.differences import Comparison
from specsearch.analysis.lines import listed
from specsearch.analysis.stability import Ratio, relative_range, values_at
from specsearch.analysis.standing import Contender, Judge
from specsearch.metrics import METRICS
from specsearch.objective import Objective
from specsearch.search_space import is_plain
from specsearch.trial import TrialResult, TrialStatus

_NOT_TRIED = (TrialStatus.ABORTED, TrialStatus.REJECTED, TrialStatus.SKIPPED_DUPLICATE)


class Finding(StrEnum):
    """What the study found about speculation."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no_significant_difference"  # not decided: 1 is inside the interval, or nothing was repeated
    QUEUE_LIMITED = "queue_limited"  # not decided: requests waited to be admitted in one of the two only
    NO_SPECULATION = "no_speculative_trial"
    NO_PLAIN = "no_plain_trial"
    NOTHING_RANKED = "none"


def finding_of(plain: Contender | None, speculative: Contender | None) -> Finding:
    """What two numbers and their interval allow to be said."""
    if speculative is None:
        return Finding.NO_SPECULATION
    if plain is None or speculative.over_best_plain is None:
        return Finding.NO_PLAIN
    if speculative.queue_limited != plain.queue_limited:
        return Finding.QUEUE_LIMITED
    if not speculative.over_best_plain.known:
        return Finding.NO_DIFFERENCE
    if speculative.over_best_plain.is_above:
        return Finding.FASTER
    return Finding.SLOWER if speculative.over_best_plain.is_below else Finding.NO_DIFFERENCE


def headline(judge: Judge, finding: Finding, *, searched: bool) -> str:
    """The answer in a few sentences; `searched` says whether the space has speculation at all."""
    plain_row, row = judge.best(plain=True), judge.best(plain=False)
    plain, speculative = (judge.contender(best) if best else None for best in (plain_row, row))
    if row is None or speculative is None:
        return _without_speculation(judge.rows, judge.objective, plain, searched=searched)
    if plain_row is None or plain is None or speculative.over_best_plain is None:
        return (
            f"{speculative.title} is the best, but no plain decoding was ranked: whether speculation pays is not known."
        )
    said = [_comparison(judge, finding, speculative, plain), _lengths(judge, row, speculative)]
    if finding != Finding.SLOWER:
        said.append(_elsewhere(judge, row))
    if finding == Finding.NO_DIFFERENCE:
        said.append(_what_decides((row, plain_row), judge.objective, speculative.over_best_plain))
    if speculative.queue_limited or plain.queue_limited:
        said.append("Raise max_running_requests, or free memory for it, and run both again.")
    return " ".join(filter(None, said))


def confounded(comparisons: Sequence[Comparison]) -> str | None:
    """A sentence on what else than speculation and searched knobs these comparisons of one trial may owe to."""
    plain: dict[tuple[str, ...], list[str]] = {}
    for comparison in comparisons:
        if comparison.confounders:
            plain.setdefault(comparison.confounders, []).append(f"t{comparison.plain:04d}")
    if not plain:
        return None
    differs = (f"from {listed(names)} in {listed(settings)}" for settings, names in plain.items())
    return f"Confounded: beyond the searched settings, t{comparisons[0].trial:04d} also differs {listed(differs)}."


def show(ratio: Ratio | None) -> str:
    """A ratio with its interval, `1.42× (1.38–1.47)`."""
    if ratio is None:
        return "–"
    queue = ", queue-limited" if ratio.queue_limited else ""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}× (measured once{queue})"
    digits = 2 if ratio.high - ratio.low > 0.02 else 3
    return f"{ratio.value:.{digits}f}× ({ratio.low:.{digits}f}–{ratio.high:.{digits}f}{queue})"


def show_short(ratio: Ratio | None) -> str:
    """A ratio without its interval; `q` where it compares what servers admit."""
    return "–" if ratio is None else f"{ratio.value:.2f}×{' q' if ratio.queue_limited else ''}"


def _comparison(judge: Judge, finding: Finding, speculative: Contender, plain: Contender) -> str:
    where = f" at {listed(judge.objective.at)}" if _uncounted(judge) else ""
    ratio, other = show(speculative.over_best_plain), f"the best plain decoding, {plain.title}"
    match finding:
        case Finding.FASTER:
            word = "fast" if METRICS[judge.objective.metric].unit in ("tokens/s", "ms") else "good"
            return f"Speculation pays{where}: {speculative.title} is {ratio} as {word} as {other}."
        case Finding.SLOWER:
            best = f"the best, {speculative.title}, reaches {ratio}"
            return f"No speculation beats the baseline{where}: {best} of {other}."
        case Finding.QUEUE_LIMITED:
            waited = speculative if speculative.queue_limited else plain
            why = f"requests waited to be admitted in t{waited.trial:04d} only, so this compares limits, not speed"
            return f"Not decided{where}: {speculative.title} measured {ratio} of {other}; {why}."
        case _:
            known = speculative.over_best_plain is not None and speculative.over_best_plain.known
            why = "the interval includes 1" if known else "nothing was repeated, so there is no interval"
            return f"Not decided{where}: {speculative.title} measured {ratio} of {other}; {why}."


def _lengths(judge: Judge, row: TrialResult, speculative: Contender) -> str:
    """The break-even sentence, which speaks of the matched plain run and so may not repeat the ratio before it."""
    points = judge.objective.values(row.measurements) or {}
    if len(points) > 1 and judge.objective.aggregate != "geomean":
        return ""  # lengths are geometric means, and would answer another question than the ratio
    match, _ = judge.costs(row)
    if speculative.margin is None or speculative.break_even is None or match is None:
        return ""
    kind = "the nearest plain run" if match.predicted else "its matched plain run"
    against = f"; against t{match.row.number:04d}, {kind}, it needs"
    if match.row is judge.best(plain=True):
        against = " and needs"
    side = f"{'above' if speculative.margin >= 0 else 'below'} by {abs(speculative.margin):.2f}"
    accepts = f"It accepts {speculative.accept_length:.2f} tokens per step"
    return f"{accepts}{against} {speculative.break_even:.2f} to break even: {side}."


def _elsewhere(judge: Judge, row: TrialResult) -> str:
    """The load points outside the objective where the same trial is slower than plain decoding."""
    found = {point: judge.over_plain_at(row, point) for point in _uncounted(judge)}
    slower = {point: ratio for point, ratio in found.items() if ratio is not None and ratio.value < 1}
    if not slower:
        return ""
    values = (f"{r.value:.2f}×{' (queue-limited)' if r.queue_limited else ''}" for r in slower.values())
    return f"At {listed(slower)}, which the objective does not count, it measured {listed(values)}."


def _uncounted(judge: Judge) -> list[str]:
    """Load points that were measured and that the objective leaves out."""
    measured = dict.fromkeys(m.load_point for row in judge.order for m in row.measurements)
    return [point for point in measured if judge.objective.at and point not in judge.objective.at]


def _what_decides(rows: Sequence[TrialResult], objective: Objective, ratio: Ratio) -> str:
    points = objective.values(rows[0].measurements) or {}
    repeats = [(values_at(row.measurements, objective.metric, point), point) for row in rows for point in points]
    apart, point = max((relative_range(values), point) for values, point in repeats)
    if not ratio.known or apart == 0:
        return f"Give {listed(points)} more repeats, or run both again."
    return f"Raise the repeats of {point}, whose repeats differ most ({apart:.0%}), or run both again."


def _without_speculation(
    rows: Sequence[TrialResult], objective: Objective, plain: Contender | None, *, searched: bool
) -> str:
    """Why no speculative trial is ranked, and what is the best without one."""
    tried = [row for row in rows if not is_plain(row.point) and row.status not in _NOT_TRIED]
    scored = [row for row in tried if row.status == TrialStatus.OK and objective.score(row.measurements) is not None]
    best = f"the best plain decoding is {plain.title}" if plain else "no plain decoding is ranked"
    if scored:
        near = min(scored, key=lambda row: (max(objective.violations(row.measurements)), row.number))
        bounds = " and ".join(map(str, objective.subject_to))
        nearest = f"the nearest, t{near.number:04d}, has {listed(broken_bounds(near, objective).values())}"
        return f"No speculative configuration keeps {bounds}; {nearest}. Of those that do, {best}."
    if tried:
        counts = Counter(
            f"{row.status} {row.reason}" if row.reason else f"{row.status} without {objective.metric}" for row in tried
        )
        ended = ", ".join(f"{count} {what}" for what, count in counts.items())
        many = f"All {len(tried)} speculative configurations" if len(tried) > 1 else "The one speculative configuration"
        return f"{many} failed ({ended}): whether speculation pays is not known; {best}."
    if searched or any(not is_plain(row.point) for row in rows):
        return f"No speculative configuration has been measured yet; {best}."
    return f"The search space has no speculation: nothing is said of it; {best}."
