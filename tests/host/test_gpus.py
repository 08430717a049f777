"""A GPU is free when its memory is, and what is said about a busy one is true. NVML is a fake, time too."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from specsearch.errors import AbortedTrial, FailedTrial, HostNotFit, MemoryNotReleased
from specsearch.host.gpus import (
    NEEDED_NAMES,
    Gpus,
    NvmlGpus,
    busy_gpus,
    holder_command,
    idle_readings,
    visible_gpu_indices,
    wait_until_free,
    wait_until_released,
)
from specsearch.trial import StopFlag
from tests.fakes import FakeClock
from tests.host.fake_nvml import MIB, Card, FakeNvml, FunctionNotFound, NotSupported, NVMLError, Unknown


def gpus_of(*cards: Card, commands: Callable[[int], str | None] = lambda pid: None) -> NvmlGpus:
    return NvmlGpus(range(len(cards)), FakeNvml(list(cards)), commands)


def series(clock: FakeClock, *points: tuple[float, int]) -> Callable[[], int]:
    """Used MiB as a step function of the time."""
    return lambda: next(mib for at, mib in reversed(points) if clock.now >= at)


def waited(gpus: Gpus, clock: FakeClock, timeout_s: float = 60, stop: StopFlag | None = None) -> float:
    return wait_until_free(gpus, {}, timeout_s=timeout_s, poll_s=1, clock=clock, stop=stop)


def test_readings_come_in_ascending_order_and_only_for_the_chosen_gpus() -> None:
    nvml = FakeNvml([Card("GPU-a"), Card("GPU-b", used_mib=7, reserved_mib=600), Card("GPU-c", pids=[28290])])
    first, second = NvmlGpus([2, 1], nvml, lambda pid: "python").read()
    assert (first.index, first.uuid, first.used_bytes, first.reserved_bytes) == (1, "GPU-b", 7 * MIB, 600 * MIB)
    assert (first.method, first.utilization, first.power_w, first.mig) == ("v2", 0.25, 76.5, False)
    assert [str(holder) for holder in second.holders] == ["pid 28290 (python)"]


def test_versions_are_read_also_from_an_old_module_that_gives_bytes() -> None:
    gpus = NvmlGpus([], FakeNvml(driver=b"535.1"))
    assert (gpus.driver_version(), gpus.cuda_version()) == ("535.1", "13.1")


def test_a_launch_waits_for_the_last_gpu_and_no_longer() -> None:
    """RC-01: seven GPUs are free at 2 s, GPU 3 at 14 s, read the old way with 610 MiB when idle."""
    clock = FakeClock()

    def card(index: int, *points: tuple[float, int]) -> Card:
        return Card(f"GPU-{index}", series(clock, *points), 600, no_v2=FunctionNotFound)

    late = [(0.0, 10), (0.5, 81000), (9.0, 40000), (14.0, 20)]
    gpus = gpus_of(*(card(i, *(late if i == 3 else [(0.0, 10), (0.5, 81000), (2.0, 10)])) for i in range(8)))
    idle = idle_readings(gpus)
    assert idle == {f"GPU-{i}": 610 * MIB for i in range(8)}
    clock.now = 1
    assert wait_until_released(gpus, idle, timeout_s=60, poll_s=1, clock=clock) == 13
    assert clock.now == 14


def test_memory_that_never_comes_back_ends_the_wait_and_names_gpu_bytes_and_holder() -> None:
    """RC-01, second series."""
    clock = FakeClock()
    gpus = gpus_of(Card("GPU-a"), Card("GPU-b", 81000, pids=[4711]), commands=lambda pid: "sglang::scheduler_TP1")
    with pytest.raises(MemoryNotReleased) as caught:
        wait_until_released(gpus, {}, timeout_s=60, poll_s=1, clock=clock)
    assert str(caught.value) == (
        "60 s after the server ended GPU 1 holds 79.1 GiB (pid 4711 (sglang::scheduler_TP1)), "
        "at most 0.25 GiB counts as free"
    )


def test_every_busy_gpu_is_listed_the_fullest_first() -> None:
    gpus = gpus_of(Card("GPU-a", 1024), Card("GPU-b"), Card("GPU-c", 81920, pids=[9]), commands=lambda pid: "train.py")
    with pytest.raises(FailedTrial) as caught:
        waited(gpus, FakeClock(), timeout_s=5)
    assert caught.value.reason == "gpu_not_free"
    assert str(caught.value).startswith("after 5 s GPU 2 holds 80 GiB (pid 9 (train.py)), at most 0.25 GiB")
    assert "; GPU 0 holds 1 GiB (no process is listed: not given back yet, or owner outside this" in str(caught.value)


def test_a_stop_ends_the_wait_for_free_gpus_at_once() -> None:
    clock = FakeClock()
    with pytest.raises(AbortedTrial) as caught:
        waited(gpus_of(Card("GPU-a", 81000)), clock, stop=StopFlag("user"))
    assert (caught.value.reason, clock.now) == ("user", 0)


def test_a_stop_does_not_weaken_the_proof_of_release_and_a_hard_one_only_shortens_it() -> None:
    clock = FakeClock()
    gpus = gpus_of(Card("GPU-a", series(clock, (0, 81000), (5, 0))))
    assert wait_until_released(gpus, {}, timeout_s=60, poll_s=1, clock=clock, stop=StopFlag("user")) == 5
    clock.now = 0
    with pytest.raises(MemoryNotReleased):
        wait_until_released(gpus, {}, timeout_s=60, poll_s=1, clock=clock, stop=StopFlag("user", hard=True))


@pytest.mark.parametrize("error", [None, FunctionNotFound, NotSupported, Unknown])
@pytest.mark.parametrize(("used_mib", "is_free"), [(4, True), (516, False)])
def test_what_the_driver_reserves_is_not_held_and_one_context_is(
    error: type[NVMLError] | None, used_mib: int, is_free: bool
) -> None:
    """RC-06: 1,286 MiB reserved, 4 used when idle, 516 with a context left behind; also where v2 cannot be read."""
    card = Card("GPU-a", 4, 1286, no_v2=error)
    gpus = gpus_of(card)
    idle = idle_readings(gpus)
    card.used_mib = used_mib
    assert (busy_gpus(gpus.read(), idle) == []) is is_free
    assert gpus.read()[0].method == ("v1" if error else "v2")


@pytest.mark.parametrize("card", [Card("GPU-a", 516, 1286, [77], no_v2=Unknown), Card("GPU-a", 9000, no_v2=Unknown)])
def test_a_job_that_runs_when_the_study_begins_is_not_taken_for_idle(card: Card) -> None:
    gpus = gpus_of(card)
    assert idle_readings(gpus) == {}
    assert [reading.index for reading in busy_gpus(gpus.read(), {})] == [0]


def test_an_idle_reading_of_the_old_way_does_not_excuse_memory_read_the_new_way() -> None:
    """v2 may come back after it failed once: what it says stands alone."""
    card = Card("GPU-a", 4, 1286, no_v2=Unknown)
    gpus = gpus_of(card)
    idle = idle_readings(gpus)
    card.no_v2, card.used_mib = None, 516
    assert busy_gpus(gpus.read(), idle) != []


@pytest.mark.parametrize("look", [idle_readings, lambda gpus: waited(gpus, FakeClock())])
def test_a_gpu_in_mig_mode_is_refused(look: Callable[[Gpus], object]) -> None:
    """RC-08: also where the card no longer answers for its utilization."""
    gpus = gpus_of(Card("GPU-aa", mig=1), Card("GPU-bb"))
    assert gpus.read()[0].utilization is None
    with pytest.raises(HostNotFit, match="GPU 0 is in MIG mode; specsearch needs whole GPUs"):
        look(gpus)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", (1,)),
        ("2, 0", (0, 2)),
        ("GPU-bb,GPU-aa", (0, 1)),
        ("GPU-c", (2,)),
    ],
)
def test_cuda_visible_devices_is_honoured_as_indices_and_as_uuids(value: str | None, expected: tuple[int, ...]) -> None:
    """RC-08."""
    nvml = FakeNvml([Card("GPU-aa"), Card("GPU-bb"), Card("GPU-cc")])
    assert visible_gpu_indices({} if value is None else {"CUDA_VISIBLE_DEVICES": value}, nvml) == expected


@pytest.mark.parametrize("value", ["3", "GPU-zz", "GPU-", "MIG-11", "zero"])
def test_a_gpu_that_is_not_there_is_refused_by_name(value: str) -> None:
    nvml = FakeNvml([Card("GPU-aa"), Card("GPU-bb")])
    with pytest.raises(HostNotFit, match=value):
        visible_gpu_indices({"CUDA_VISIBLE_DEVICES": value}, nvml)


def test_asking_for_a_gpu_that_the_host_lacks_says_how_many_it_has() -> None:
    with pytest.raises(HostNotFit, match="GPU 4 is asked for, this host has 1"):
        NvmlGpus([4], FakeNvml([Card("GPU-a")]))


def test_a_lost_gpu_fails_the_trial() -> None:
    with pytest.raises(FailedTrial, match="GPU 0 does not answer NVML: GPU is lost") as caught:
        gpus_of(Card("GPU-a", lost=True)).read()
    assert caught.value.reason == "gpu_lost"


@pytest.mark.parametrize("pids", [[2**22 + 1], [1]])
def test_a_holder_that_cannot_be_a_process_of_this_container_is_called_outside(pids: list[int]) -> None:
    """RC-09: a pid that is not in /proc, and pid 1, which is our own init."""
    gpus = NvmlGpus([0], FakeNvml([Card("GPU-a", 81000, pids=pids)]))
    with pytest.raises(FailedTrial, match="owner outside this container: run nvidia-smi on the host"):
        waited(gpus, FakeClock())


def test_an_empty_process_list_is_no_proof_of_a_free_gpu() -> None:
    """RC-09."""
    with pytest.raises(FailedTrial, match="no process is listed"):
        waited(gpus_of(Card("GPU-a", 81000)), FakeClock())


def test_a_local_process_with_the_same_number_is_not_blamed_unless_it_has_a_gpu_open() -> None:
    """RC-09: the pid may be a number of another world."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert holder_command(process.pid) is None
        assert "input()" in str(holder_command(process.pid, ("pipe:",)))  # had it something like that open
        assert process.stdin
        process.stdin.write(b"\n")


def in_python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(Path(__file__).parents[2])])}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


LOAD = """
    from specsearch.errors import HostNotFit
    from specsearch.host.gpus import load_nvml
    try:
        print(load_nvml())
    except HostNotFit as error:
        print(error)
"""
OLD_MODULE = "import warnings\nwarnings.warn('The pynvml package is deprecated.', FutureWarning)\n"


def test_the_old_pynvml_is_refused_with_both_distributions_named(tmp_path: Path) -> None:
    """RC-10, with warnings as errors: its FutureWarning ends nothing."""
    (tmp_path / "pynvml.py").write_text(OLD_MODULE + "class NVMLError(Exception): ...\n")
    done = in_python(LOAD, tmp_path)
    assert "lacks nvmlInit, nvmlMemory_v2" in done.stdout
    assert "deprecated distribution pynvml, not from nvidia-ml-py" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("module", "seen"),
    [
        ("try: pass\nexcept OSError, error: pass\n", "SyntaxError"),
        ("import sys\nsys.nothing\n", "AttributeError"),
        ("import no_such_module\n", "ModuleNotFoundError"),
    ],
)
def test_a_pynvml_that_cannot_be_imported_is_one_sentence(tmp_path: Path, module: str, seen: str) -> None:
    """RC-10: written for Python 2, mixed from two distributions, or with a part missing."""
    (tmp_path / "pynvml.py").write_text(module)
    done = in_python(LOAD, tmp_path)
    assert done.stdout.startswith(f"NVML: the module pynvml of nvidia-ml-py cannot be imported ({seen}: ")
    assert "pip uninstall pynvml" in done.stdout
    assert done.stderr == ""


def test_the_old_pynvml_harms_nobody_who_simulates(tmp_path: Path) -> None:
    """RC-10, case 2."""
    (tmp_path / "pynvml.py").write_text(OLD_MODULE)
    code = """
        from pathlib import Path
        from specsearch.host.simulated_gpus import SimulatedGpus
        print(len(SimulatedGpus(Path("nowhere"), (0, 1)).read()))
    """
    done = in_python(code, tmp_path)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_without_a_driver_there_is_one_sentence(tmp_path: Path) -> None:
    names = "\n".join(f"{name} = None" for name in NEEDED_NAMES)
    text = "class NVMLError(Exception): ...\ndef nvmlInit(): raise NVMLError('NVML Shared Library Not Found')\n"
    (tmp_path / "pynvml.py").write_text(f"{names}\n{text}")
    done = in_python(LOAD, tmp_path)
    assert done.stdout == "NVML: no NVIDIA driver answers on this host: NVML Shared Library Not Found\n"


def test_the_installed_module_has_every_name_that_is_needed() -> None:
    import pynvml

    assert [name for name in NEEDED_NAMES if not hasattr(pynvml, name)] == []
