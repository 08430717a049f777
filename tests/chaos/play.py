"""One accident from its beginning to its judgement."""

import contextlib
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.bystanders import Bystanders
from tests.chaos.judge import Findings, Row, Verdict, judge_rows, judge_verdict, judge_words, read_rows
from tests.chaos.moments import DEAF, HELD_AT, KEPT_MEMORY, Hold, Stranger, reach
from tests.chaos.scene import Run, Scene, send, wait_until
from tests.chaos.schedule import IN_PROCESS, RAY, STUBBORN, Accident
from tests.chaos.strikes import broken_disk, on_its_own_disk, strike

REACH_S = {IN_PROCESS: 60.0, RAY: 120.0}
DEADLINE_S = {IN_PROCESS: 60.0, RAY: 100.0}  # from the accident to the end of the run
WHOLE_S = {IN_PROCESS: 120.0, RAY: 180.0}  # a run to its end, on a busy machine
GONE_S = 25.0  # a killed run's processes
PAUSE_S = 2.0  # how long a stopped driver stands still before it goes on
_TRIES = 2  # a moment that passed unseen is waited for once more, and another best is believed when it comes again


@dataclass(slots=True)
class Outcome:
    """What became of one accident."""

    accident: Accident
    findings: Findings = field(default_factory=Findings)
    struck: list[str] = field(default_factory=list)
    missed: bool = False
    codes: list[int | None] = field(default_factory=list)
    to_end_s: float = 0.0  # from the accident to the end of the run
    to_gone_s: float = 0.0  # from there until no server of it was left
    seconds: float = 0.0
    last_words: str = ""
    rows: list[str] = field(default_factory=list)  # those that are not ok, in the end
    other_bests: list[str] = field(default_factory=list)  # what an earlier try named, which did not come again

    def record(self) -> dict[str, object]:
        return {
            "name": self.accident.name,
            "survived": self.findings.survived,
            "missed": self.missed,
            "counts": self.findings.counts,
            "sentences": self.findings.sentences(),
            "struck": self.struck,
            "codes": self.codes,
            "to_end_s": round(self.to_end_s, 2),
            "to_gone_s": round(self.to_gone_s, 2),
            "seconds": round(self.seconds, 1),
            "rows": self.rows,
            "other_bests": self.other_bests,
            "last_words": self.last_words,
        }


def play(
    accident: Accident, folder: Path, undisturbed: Verdict, standing_by: Bystanders, *, small: bool = False
) -> Outcome:
    """Let the accident happen in a fresh study, run the same command again, and judge."""
    began = time.monotonic()
    other_bests: list[str] = []
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        outcome = Outcome(accident)
        _Play(accident, folder, outcome, small=small).perform(undisturbed)
        outcome.other_bests = other_bests
        if not outcome.missed and not _may_be_noise(outcome.findings):
            break
        if not outcome.missed:
            other_bests = [*other_bests, *outcome.findings.sentences()]
    outcome.findings.add("strangers_harmed", *standing_by.harmed())
    outcome.seconds = time.monotonic() - began
    return outcome


class _Play:
    def __init__(self, accident: Accident, folder: Path, outcome: Outcome, *, small: bool) -> None:
        self.accident, self.outcome = accident, outcome
        self.hold = Hold(folder / "hold")
        self.stranger: Stranger | None = None
        self.scene = Scene(folder, accident.executor, _faults(accident), small)
        self.hold.folder.mkdir()
        if accident.phase in HELD_AT:
            self.scene.env = self.hold.environment(HELD_AT[accident.phase].format(trial=accident.trial))

    def perform(self, undisturbed: Verdict) -> None:
        scene, outcome = self.scene, self.outcome
        try:
            with on_its_own_disk(scene.results, wanted=self.accident.act == "full"):
                self._first_run()
                if outcome.missed:
                    return
                before = scene.rows()
                self._second_run()
                rows = read_rows(scene.results)
                outcome.rows = [words for row in rows if (words := _in_words(row))]
                judge_rows(before, scene.rows(), rows, outcome.findings)
                judge_verdict(rows, undisturbed, outcome.findings)
                self._nothing_left("after the second run")
        finally:
            scene.clean()

    def _first_run(self) -> None:
        run = self.scene.start("first", **_streams(self.accident.act, self.scene.folder))
        with contextlib.ExitStack() as stack:
            stack.callback(send, [run.process.pid], signal.SIGCONT)
            struck_at = self._happen(run, stack)
            if struck_at is None:
                self.outcome.missed = True
                run.process.kill()
                run.process.wait()
                return
            code = run.wait(DEADLINE_S[self.accident.executor])
            self.outcome.to_end_s = time.monotonic() - struck_at
            self._judge_first(code, run)
            if self.accident.victim != STUBBORN:  # nobody is left who could end them, until the next run
                self._nothing_left("after the run that met the accident")

    def _happen(self, run: Run, stack: contextlib.ExitStack) -> float | None:
        """Follow the run to the moment and strike; the time of the strike, or None where the moment was missed."""
        accident, scene = self.accident, self.scene
        if accident.victim == "streams":
            return time.monotonic()
        alive = lambda: run.process.poll() is None  # noqa: E731
        if accident.phase in HELD_AT:
            there = wait_until(lambda: self.hold.pid is not None or not alive(), REACH_S[accident.executor])
            if not there or self.hold.pid is None:
                return None
        elif not reach(accident.phase, scene, accident.trial, alive, REACH_S[accident.executor]):
            return None
        stack.callback(self._rows_are_there, scene.rows())
        struck_at = time.monotonic()
        self._strike(run, stack)
        return struck_at

    def _rows_are_there(self, rows: dict[str, str]) -> None:
        judge_rows(rows, self.scene.rows(), [], self.outcome.findings)

    def _strike(self, run: Run, stack: contextlib.ExitStack) -> None:
        accident, scene = self.accident, self.scene
        if accident.victim == "disk":
            writer = self.hold.pid or run.process.pid
            stack.enter_context(broken_disk(accident.act, scene, writer))
            self.hold.let_go()
            return
        if accident.victim == "folder":
            second = scene.start("rival", plain=True)
            code = second.wait(DEADLINE_S[accident.executor])
            self.hold.let_go()
            self._judge_rival(code, second)
            return
        if accident.phase in ("claim", "gpus_free"):
            self._enter_the_first_phases()
        names = {seen.pid: str(seen) for seen in scene.processes()}
        struck = strike(accident.victim, accident.act, scene, run)
        if not struck:
            self.outcome.missed = True
        self.outcome.struck = [names.get(pid, f"pid {pid}") for pid in struck]
        if accident.phase not in ("claim", "gpus_free"):
            self.hold.let_go()
        if (accident.victim, accident.act) == ("driver", "stop"):
            time.sleep(PAUSE_S)
        self._stranger_goes()
        if accident.victim == "driver":
            send(struck, signal.SIGCONT)

    def _enter_the_first_phases(self) -> None:
        """The note is being written: the phase claim is next, and somebody else's memory keeps it in gpus_free."""
        if self.accident.phase == "gpus_free":
            places = sorted(self.scene.ledger.glob("*/gpu0")) or [self.scene.ledger / "local" / "gpu0"]
            self.stranger = Stranger(places[0] / "stranger.json")
            self.stranger.come()
        self.hold.let_go()
        wait_until(lambda: self.scene.has_note(self.accident.trial), 5)
        if self.accident.phase == "gpus_free":
            time.sleep(0.3)

    def _stranger_goes(self) -> None:
        if self.stranger is None:
            return
        if not self.stranger.path.exists():
            self.outcome.findings.add("strangers_harmed", "a stranger's GPU memory was written off")
        self.stranger.go()
        self.stranger = None

    def _second_run(self) -> None:
        """The same command again; a study needs as many runs as its failures of the host ended."""
        for name in ("second", "third"):
            run = self.scene.start(name, plain=True)
            code = run.wait(WHOLE_S[self.accident.executor])
            self.outcome.codes.append(code)
            if code is None:
                self.outcome.findings.add("driver_hung", f"the {name} run did not end")
                return
            if code != 3:
                break
        judge_words(code, run.err.read_text(errors="replace"), self.outcome.findings, killed=False, expected={0})

    def _judge_first(self, code: int | None, run: Run) -> None:
        self.outcome.codes.append(code)
        error = run.err.read_text(errors="replace") if run.err.exists() else ""
        self.outcome.last_words = "\n".join(error.splitlines()[-4:])
        if code is None:
            self.outcome.findings.add("driver_hung", "the run that met the accident did not end")
            return
        killed, expected = _ends(self.accident)
        judge_words(code, error, self.outcome.findings, killed=killed, expected=expected)
        neighbour = self.scene.neighbour()
        if neighbour is None and self.accident.victim != "group":
            self.outcome.findings.add("strangers_harmed", "the neighbour in the process group was ended")

    def _judge_rival(self, code: int | None, rival: Run) -> None:
        if code != 4:
            self.outcome.findings.add("badly_said", f"a second run over a folder in use ended with {code}, not 4")

    def _nothing_left(self, when: str) -> None:
        began = time.monotonic()
        wait_until(lambda: not self.scene.processes(), GONE_S, poll_s=0.05)
        self.outcome.to_gone_s = max(self.outcome.to_gone_s, time.monotonic() - began)
        left = self.scene.processes()
        self.outcome.findings.add("servers_left", *(f"{when}: {process}" for process in left))
        held = [path for path in self.scene.ledger.rglob("*.json") if path.name.removesuffix(".json").isdigit()]
        alive = {process.pid for process in left}
        self.outcome.findings.add(
            "servers_left", *(f"{when}: {path} stands for memory" for path in held if int(path.stem) in alive)
        )


def _may_be_noise(findings: Findings) -> bool:
    """Whether nothing but the ranking differs, which a busy machine can do alone."""
    said = findings.sentences()
    return len(said) == 1 and said[0].startswith("verdict_changed: the best is")


def _in_words(row: Row) -> str:
    """An attempt that did not go as usual; empty for one that did."""
    name = f"t{row['trial']:04d}-{row['attempt']}"
    if row["status"] != "ok":
        return f"{name} {row['status']} {row['reason']}"
    return f"{name} ok, its end not seen" if "the end of its server was not seen" in str(row["warnings"]) else ""


def _faults(accident: Accident) -> str:
    if accident.victim == STUBBORN or accident.phase == "teardown":
        return DEAF
    return KEPT_MEMORY if accident.phase == "memory_free" else ""


def _ends(accident: Accident) -> tuple[bool, set[int]]:
    """Whether the run itself is killed, and the exit codes that are right otherwise."""
    codes = {"term": 143, "int": 130, "hup": 129}
    if accident.victim in ("driver", "everything", STUBBORN) and accident.act == "kill":
        return True, set()
    if accident.victim in ("driver", "group") and accident.act in codes:
        return False, {codes[accident.act], 0}  # 0: it came with the last breath of the study
    if accident.victim == "disk":
        return False, {0, 4} if accident.phase in ("log", "ledger", "study_log") else {4}
    if accident.victim == "streams":
        return False, {0, 4, 141}
    return False, {0, 3} if accident.executor == RAY else {0}


def _streams(act: str, folder: Path) -> dict[str, object]:
    """What the run's output goes to."""
    full = lambda: os.open("/dev/full", os.O_WRONLY)  # noqa: E731
    match act:
        case "stdout_full":
            return {"stdout": full()}
        case "stderr_full":
            return {"stderr": full()}
        case "stdout_closed":
            return {"preexec_fn": lambda: os.close(1)}
        case "stderr_closed":
            return {"preexec_fn": lambda: os.close(2)}
        case "both_closed":
            return {"preexec_fn": lambda: (os.close(1), os.close(2))}
        case "reader_gone":
            reader, writer = os.pipe()
            os.close(reader)
            return {"stdout": writer}
    return {}


def undisturbed_study(folder: Path, *, small: bool = False) -> Verdict:
    """The verdict of the study without an accident."""
    scene = Scene(folder, IN_PROCESS, small=small)
    run = scene.start("undisturbed", plain=True)
    code = run.wait(WHOLE_S[IN_PROCESS])
    assert code == 0, run.err.read_text(errors="replace")
    return Verdict.of(read_rows(scene.results))
