"""The grammar of search-space files; the only place beside config.py that knows YAML and pydantic."""

from specsearch._search_space_file.build import read_study as read_study
