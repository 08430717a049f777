"""What a killed server leaves is removed; what anybody uses or might own is not."""

import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specsearch.errors import FailedTrial
from specsearch.host.leftovers import (
    SHARED_MEMORY,
    Leftovers,
    disk_free_bytes,
    make_tmpdir,
    remove_tmpdir,
    shm_total_free,
)


@pytest.fixture
def own_names() -> Iterator[list[Path]]:
    """Files in the real /dev/shm that the test may make."""
    names: list[Path] = []
    yield names
    for path in names:
        path.unlink(missing_ok=True)


def test_only_what_appeared_since_is_known_and_unused_is_removed(tmp_path: Path) -> None:
    """RC-11: an older file of a known family and a new one of an unknown family stay."""
    (tmp_path / "psm_other").touch()
    before = Leftovers.snapshot(tmp_path)
    for name in ("nccl-XXXX", "psm_YYYY", "sgl_shm_1", "sem.mp-abc", "sem.mydb", "report.txt"):
        (tmp_path / name).touch()
    (tmp_path / "torch_folder").mkdir()
    removed = before.remove()
    assert [path.name for path in removed] == ["nccl-XXXX", "psm_YYYY", "sem.mp-abc", "sgl_shm_1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["psm_other", "report.txt", "sem.mydb", "torch_folder"]
    assert before.remove() == []


def test_a_killed_servers_shared_memory_is_removed_and_a_living_ones_is_not(own_names: list[Path]) -> None:
    """RC-11, in the real /dev/shm: one process is killed with its segment, another one still maps its own."""
    code = """if True:
        import mmap, sys
        with open(sys.argv[1], "w+b") as file:
            file.truncate(4096)
            memory = mmap.mmap(file.fileno(), 4096)
        print("mapped", flush=True)
        input()
    """
    before = Leftovers.snapshot()
    dead, living = (SHARED_MEMORY / f"nccl-specsearch-test-{word}-{id(own_names)}" for word in ("dead", "living"))
    own_names += [dead, living]
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", code, str(path)], stdin=-1, stdout=-1) for path in own_names
    ]
    for process in processes:
        with process:
            assert process.stdout
            process.stdout.readline()
            if process is processes[0]:
                process.kill()
                process.wait()
                continue
            removed = before.remove()
            assert dead in removed
            assert living not in removed
            assert living.exists()
            process.kill()


def test_a_file_that_is_only_mapped_is_in_use_for_the_kernel(tmp_path: Path) -> None:
    """Another container's processes cannot be seen, its use of a shared /dev/shm can."""
    from specsearch.host.leftovers import _is_open_elsewhere

    path = tmp_path / "psm_1"
    with path.open("w+b") as file:
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 4096)
    assert _is_open_elsewhere(path)
    memory.close()
    assert not _is_open_elsewhere(path)


def test_a_tmpdir_is_short_enough_for_the_sockets_made_in_it(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    made = [make_tmpdir(base, "study/t0007 EAGLE3 3/4/16") for base in (Path("/tmp"), deep)]
    for tmpdir in made:
        assert len(str(tmpdir / "pymp-xxxxxxxx" / "listener-xxxxxxxx")) <= 107
        assert tmpdir.parent == Path("/tmp")
        (tmpdir / "socket").touch()
        remove_tmpdir(tmpdir)
        assert not tmpdir.exists()
    assert not deep.exists()


def test_free_space_is_told_also_for_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert disk_free_bytes(tmp_path / "results" / "kimi") == pytest.approx(disk_free_bytes(tmp_path), rel=0.1)
    assert shm_total_free(tmp_path)[0] > 0
    assert shm_total_free(tmp_path / "nowhere") == (0, 0)


def test_a_host_without_room_for_a_temporary_folder_fails_the_launch_and_not_the_study() -> None:
    with pytest.raises(FailedTrial, match="no temporary folder can be made in /dev/null") as raised:
        make_tmpdir(Path("/dev/null"), "1-1")
    assert raised.value.reason == "launch_failed"
