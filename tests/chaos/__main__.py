"""`python -m tests.chaos`: the whole schedule, resumable, and the five figures at its end."""

import argparse
import contextlib
import fcntl
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.bystanders import bystanders
from tests.chaos.judge import FIGURES, MORE
from tests.chaos.play import play, undisturbed_study
from tests.chaos.schedule import Accident, schedule
from tests.chaos.strikes import can_mount, needs_mounts


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is not in the records yet; 1 when a figure is not zero."""
    arguments = _parser().parse_args(argv)
    chosen = [Accident.named(name) for name in arguments.only] or schedule(arguments.number, arguments.seed)
    records = arguments.records or Path("results") / "chaos" / f"seed-{arguments.seed}.jsonl"
    known = {} if arguments.only else _read(records)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that an ended run cleans up, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell has put us into the background
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        if not can_mount(Path(folder)):
            chosen = [accident for accident in chosen if not needs_mounts(accident.act)]
            _say("file systems cannot be mounted here: the accidents with a full or read-only disk are left out")
        with _alone(records):
            _run([a for a in chosen if a.name not in known], Path(folder), records, known, keep=arguments.keep)
    return _conclude([known[accident.name] for accident in chosen if accident.name in known], arguments.seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--number", type=int, default=200, metavar="N", help="accidents of the schedule; default: 200")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule; default: 1")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="play this accident alone, again")
    parser.add_argument("--records", type=Path, metavar="FILE", help="default: results/chaos/seed-SEED.jsonl")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="play in this folder and leave it there")
    return parser


@contextlib.contextmanager
def _alone(records: Path) -> Iterator[None]:
    """Two runs would play the same accidents, and read each other's records."""
    records.parent.mkdir(parents=True, exist_ok=True)
    with records.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{records} is in use by another run")
        yield


def _read(records: Path) -> dict[str, dict[str, object]]:
    """What earlier runs have recorded; what was missed, and a line that was cut off, count as not played."""
    found = {}
    for line in records.read_text().splitlines() if records.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not record["missed"]:
            found[str(record["name"])] = record
    return found


def _run(
    chosen: Sequence[Accident], folder: Path, records: Path, known: dict[str, dict[str, object]], *, keep: Path | None
) -> None:
    if not chosen:
        return
    began = time.monotonic()
    undisturbed = undisturbed_study(folder / "undisturbed")
    with bystanders(folder / "bystanders") as standing_by:
        for done, accident in enumerate(chosen):
            left_s = (time.monotonic() - began) / done * (len(chosen) - done) if done else 0.0
            outlook = f", about {left_s / 60:.0f} min left" if done else ""
            _say(f"[{done + 1}/{len(chosen)}{outlook}] {accident.name}", end=" ")
            outcome = play(accident, (keep or folder) / "scene", undisturbed, standing_by)
            record = outcome.record()
            known[accident.name] = record
            with records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            _say(_line(record))


def _line(record: dict[str, object]) -> str:
    if record["missed"]:
        return "missed"
    sentences = record["sentences"]
    assert isinstance(sentences, list)
    how = f"codes {record['codes']}, ended after {record['to_end_s']} s, {record['seconds']} s"
    return f"{'survived' if record['survived'] else 'NOT SURVIVED'} ({how})" + "".join(f"\n    {s}" for s in sentences)


def _conclude(records: Sequence[dict[str, object]], seed: int) -> int:
    played = [record for record in records if not record["missed"]]
    missed = len(records) - len(played)
    _say(f"\n{len(played)} accidents of seed {seed}" + (f", {missed} more passed by unseen" if missed else ""))
    totals = dict.fromkeys((*FIGURES, *MORE), 0)
    for record in played:
        counts = record["counts"]
        assert isinstance(counts, dict)
        for figure, count in counts.items():
            totals[figure] += count
    for figure, total in totals.items():
        _say(f"  {figure.replace('_', ' '):<17} {total}")
    again = sum(bool(record.get("other_bests")) for record in played)
    if again:
        _say(f"  in {again} of them another configuration was best, and was not when the accident was played again")
    failed = [str(record["name"]) for record in played if not record["survived"]]
    for name in failed:
        _say(f"again: python -m tests.chaos --only {name}")
    return 1 if failed else 0


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
