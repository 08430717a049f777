"""Folders that a killed run leaves are removed by the next one; a live run's and anybody else's are not."""

import subprocess
import sys
from pathlib import Path

from specsearch.host.leftovers import disown_folder, own_folder, remove_left_folders

HOLDS_ONE = """if True:
    import sys
    from pathlib import Path
    from specsearch.host.leftovers import own_folder
    print(own_folder("ss-", Path(sys.argv[1])), flush=True)
    input()
"""


def test_the_folder_of_a_killed_process_goes_and_that_of_a_live_one_stays(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDS_ONE, str(tmp_path)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout
        folder = Path(other.stdout.readline().strip())
        (folder / "socket").touch()
        remove_left_folders("ss-", tmp_path)
        assert (folder / "socket").exists()
        other.kill()
        other.wait()
    remove_left_folders("ss-", tmp_path)
    assert not folder.exists()


def test_a_folder_that_was_not_made_so_stays_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "ss-mine").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / ".in-use").touch()
    (tmp_path / "ss-link").symlink_to(target)
    remove_left_folders("ss-", tmp_path)
    assert (tmp_path / "ss-mine").is_dir()
    assert (target / ".in-use").exists()


def test_ones_own_folder_is_kept_until_it_is_given_up(tmp_path: Path) -> None:
    folder = own_folder("ss-", tmp_path)
    remove_left_folders("ss-", tmp_path)
    assert folder.is_dir()
    disown_folder(folder)
    assert list(tmp_path.iterdir()) == []
