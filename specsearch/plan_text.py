"""The plan of a study as people and machines read it, before anything is spent."""

import json

from specsearch.cli import show
from specsearch.launch import shown
from specsearch.metrics import duration
from specsearch.prepare import Cost, Prepared, cost
from specsearch.search_space import Value, point_key


def show_plan(prepared: Prepared, style: str) -> int:
    """Print what a dry run answers: first launch plans, what is searched, warnings, cost."""
    show(json.dumps(_json(prepared), indent=2) if style == "json" else "\n".join(_lines(prepared)))
    return 0


def outlook_lines(prepared: Prepared, spent: Cost) -> list[str]:
    """What is searched and what it may cost, in a few lines."""
    config = prepared.config
    return [
        f"study {config.name} · engine {prepared.engine.name} {prepared.engine.version() or '(not installed)'}"
        f" · model {config.engine.model} · {_gpus(prepared.gpus_per_trial)} a trial",
        f"searches {', '.join(p.name for p in config.space.ordered)}: {_size(prepared)}",
        "measures " + ", ".join(f"{point.name} × {point.repeats}" for point in config.load_points) + " in every trial",
        cost_line(spent),
    ]


def given_lines(prepared: Prepared) -> list[str]:
    """What every server gets beyond the space and the pinned arguments: to be comparable, and to be measured."""
    lines = []
    if pinned := _pinned(prepared):
        told = ", ".join(pinned)
        lines.append(f"every trial after the baseline is pinned to what the baseline resolves to: {told}")
    if options := _measuring(prepared):
        told = ", ".join(name if value is True else f"{name} {value}" for name, value in options.items())
        lines.append(f"every server is started with, to be measured: {told}")
    return lines


def _pinned(prepared: Prepared) -> list[str]:
    space = prepared.config.space
    return [name for name in space.rules.pinnable() if name not in space.by_name]


def _measuring(prepared: Prepared) -> dict[str, Value]:
    """The measuring options that the search space leaves as they are."""
    engine = prepared.config.engine
    own = {*engine.args, *(f"env.{name}" for name in engine.env), *prepared.config.space.by_name}
    return {name: value for name, value in prepared.engine.measuring_options().items() if name not in own}


def cost_line(spent: Cost) -> str:
    """What is left to run and what it may take, in a sentence."""
    basis = "a guess" if spent.guessed else "from the trials measured so far"
    one = f"about {duration(spent.launch_s)} each, {basis}"
    total = f"up to {spent.launches} launches ({one}): about {duration(spent.unlimited_hours * 3600)}"
    if spent.hours < spent.unlimited_hours:
        fit = int(spent.hours * 3600 / spent.launch_s)
        total += f"; the budget of {duration(spent.hours * 3600)} ends it after about {fit}"
    return f"{total}, {spent.gpu_hours:.3g} GPU-hours, up to {spent.disk_bytes / 2**20:,.0f} MiB of logs"


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'' if count == 1 else 's'}"


def _size(prepared: Prepared) -> str:
    points = prepared.config.space.valid_points(20_000)
    if points is None:
        return f"more than 20,000 configurations ({prepared.config.space.raw_size():,} combinations)"
    return f"{len(points):,} configurations that the engine can run"


def _lines(prepared: Prepared) -> list[str]:
    lines = [*outlook_lines(prepared, cost(prepared, [])), *given_lines(prepared)]
    lines += [f"warning: {warning}" for warning in prepared.warnings]
    for title, plan in prepared.first_plans():
        lines += ["", f"# {title}", plan.shell()]
    for number, problems in prepared.rejected_seeds():
        lines += ["", f"# seed point {number} cannot be run: {'; '.join(problems)}"]
    trials = prepared.config.budget.trials
    more = "up to the budget" if trials is None else f"up to {trials} trials"
    return [*lines, "", f"# then the sampler {prepared.config.sampler.type} proposes, {more}; nothing was started"]


def _json(prepared: Prepared) -> dict[str, object]:
    points = dict(zip((title for title, _ in prepared.first_plans()), prepared.first_points(), strict=True))
    plans = [
        {
            "name": title,
            "kind": points[title][0],
            "point": json.loads(point_key(points[title][1])),
            "argv": shown(plan.command()),
            "env": plan.shown_env(),
            "unset": list(plan.unset),
            "shell": plan.shell(),
        }
        for title, plan in prepared.first_plans()
    ]
    spent = cost(prepared, [])
    return {
        "study": prepared.config.name,
        "engine": prepared.engine.name,
        "engine_version": prepared.engine.version(),
        "gpus_per_trial": prepared.gpus_per_trial,
        "plans": plans,
        "rejected_seed_points": [list(problems) for _, problems in prepared.rejected_seeds()],
        "not_searched": dict(prepared.inert),
        "pinned_from_the_baseline": _pinned(prepared),
        "measuring_options": _measuring(prepared),
        "warnings": list(prepared.warnings),
        "cost": {
            "launches": spent.launches,
            "seconds_per_launch": spent.launch_s,
            "hours": spent.hours,
            "gpu_hours": spent.gpu_hours,
            "disk_bytes": spent.disk_bytes,
            "guessed": spent.guessed,
        },
    }
