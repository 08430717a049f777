"""Samplers: which point to try next, asked with the rows and answered with a point nobody has tried."""

from collections.abc import Mapping

from specsearch.samplers.optuna_proposer import MakeSampler, OptunaProposer, make_random, make_tpe
from specsearch.samplers.optuna_study import export_journal, study_of_rows

SAMPLERS: Mapping[str, MakeSampler] = {"tpe": make_tpe, "random": make_random}

__all__ = ["SAMPLERS", "MakeSampler", "OptunaProposer", "export_journal", "make_random", "make_tpe", "study_of_rows"]
