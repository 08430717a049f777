"""The folder for what Tune insists on writing; nobody reads it, and the next run removes what a killed one left."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from specsearch.host.leftovers import disown_folder, own_folder, remove_left_folders

PREFIX = "specsearch-tune-"


@contextlib.contextmanager
def tune_folder() -> Iterator[Path]:
    """A new folder that is removed with the block."""
    base = Path(tempfile.gettempdir())
    remove_left_folders(PREFIX, base)
    folder = own_folder(PREFIX, base)
    try:
        yield folder
    finally:
        disown_folder(folder)
