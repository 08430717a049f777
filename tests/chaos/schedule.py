"""Which accidents there are, and in what order they happen: a pool of all sensible ones, shuffled by a seed.

An accident strikes one victim in one phase of one trial. It has a name, by which it can be played again alone:
`EXECUTOR/PHASE/VICTIM/ACT/TRIAL`.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

IN_PROCESS, RAY = "in-process", "ray"

# Where there is a server that can be struck. `load` and `capture` are parts of the phase that the product calls ready.
SERVED = ("launch", "load", "capture", "ready", "verify", "warm_up", "measure", "teardown")
PHASES = ("claim", "gpus_free", *SERVED, "memory_free", "row_write")
SIGNALS = ("kill", "stop", "term")

# Where the store writes; the process that writes is held at exactly that moment, and then the disk fails.
WRITES = ("note", "measured", "measurements", "trials", "forget", "log", "ledger", "study_log")
DISK = ("full", "too_large", "read_only", "moved")
STREAMS = ("stdout_full", "stderr_full", "stdout_closed", "stderr_closed", "both_closed", "reader_gone")
STUBBORN = "guard+driver"  # killed together while the server's ranks obey nobody

RAY_VICTIMS = ("worker", "raylet", "gcs", "head", "orders")


@dataclass(frozen=True, slots=True)
class Accident:
    """What strikes whom, and when."""

    executor: str
    phase: str
    victim: str
    act: str
    trial: int = 1

    @property
    def name(self) -> str:
        return f"{self.executor}/{self.phase}/{self.victim}/{self.act}/{self.trial}"

    @property
    def kind(self) -> tuple[str, str, str]:
        """What it has in common with others, whatever the phase."""
        return self.executor, self.victim, self.act

    @classmethod
    def named(cls, name: str) -> "Accident":
        """The accident of that name; raises ValueError with the names of some where there is none."""
        words = name.split("/")
        if len(words) != 5 or not words[4].isdigit():
            raise ValueError(f"{name!r} is no accident; they are called like {next(iter(pool())).name}")
        found = cls(*words[:4], int(words[4]))
        if found not in set(pool()):
            raise ValueError(f"there is no accident {name!r}")
        return found


def pool() -> Iterator[Accident]:
    """Every accident that makes sense, in a fixed order."""
    for trial in (1, 0, 2):
        yield from (Accident(*words, trial) for words in _in_process())
        yield from (Accident(*words, trial) for words in _ray())


def _in_process() -> Iterator[tuple[str, str, str, str]]:
    yield from product((IN_PROCESS,), SERVED, ("leader", "rank", "helper", "guard"), SIGNALS)
    for phase, act in product(PHASES, (*SIGNALS, "int", "hup")):
        yield IN_PROCESS, phase, "driver", act
    for phase in PHASES:
        yield IN_PROCESS, phase, "everything", "kill"
        yield IN_PROCESS, phase, "group", "term"
    for phase in ("load", "measure", "teardown"):
        yield IN_PROCESS, phase, STUBBORN, "kill"
    for write, act in product((*WRITES, "load", "measure"), DISK):
        yield IN_PROCESS, write, "disk", act
    for write in ("note", "measured", "measurements", "trials", "forget"):
        yield IN_PROCESS, write, "driver", "kill"
    for act in STREAMS:
        yield IN_PROCESS, "start", "streams", act
    for phase in ("load", "measure", "row_write"):
        yield IN_PROCESS, phase, "folder", "second_run"


def _ray() -> Iterator[tuple[str, str, str, str]]:
    yield from product((RAY,), PHASES, RAY_VICTIMS, SIGNALS)
    for phase, act in product(PHASES, (*SIGNALS, "int")):
        yield RAY, phase, "driver", act
    for phase in PHASES:
        yield RAY, phase, "everything", "kill"
        yield RAY, phase, "group", "term"
    for phase, victim in product(("load", "measure", "teardown"), ("leader", "guard", "rank")):
        yield RAY, phase, victim, "kill"
    for write, act in product(("note", "trials"), DISK):
        yield RAY, write, "disk", act


def schedule(number: int, seed: int, *, ray_share: float = 0.25) -> list[Accident]:
    """So many accidents: first one of each kind, then what a shuffle brings; at most `ray_share` of them under Ray."""
    rng = random.Random(seed)
    made = list(dict.fromkeys(pool()))
    rng.shuffle(made)
    of_ray = round(number * ray_share)
    chosen = [
        *_each_kind_first(accident for accident in made if accident.executor == RAY)[:of_ray],
        *_each_kind_first(accident for accident in made if accident.executor == IN_PROCESS)[: number - of_ray],
    ]
    rng.shuffle(chosen)
    return chosen


def _each_kind_first(accidents: Iterable[Accident]) -> list[Accident]:
    """The first of each kind, then the second of each kind, and so on."""
    seen: dict[tuple[str, str, str], int] = {}
    ranked = []
    for accident in accidents:
        seen[accident.kind] = seen.get(accident.kind, 0) + 1
        ranked.append((seen[accident.kind], accident))
    return [accident for _, accident in sorted(ranked, key=lambda entry: entry[0])]
