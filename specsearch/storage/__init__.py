"""The results folder: rows on disk, the only memory of a study."""

from specsearch.storage.fingerprint import Stamp, check_fingerprint, fingerprint_fields, reuse_obstacles
from specsearch.storage.parquet import ResultsFolder, StoredStudy

__all__ = [
    "ResultsFolder",
    "Stamp",
    "StoredStudy",
    "check_fingerprint",
    "fingerprint_fields",
    "reuse_obstacles",
]
