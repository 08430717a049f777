"""Engines: how a configuration becomes a server, and what the server says."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from specsearch.config import EngineConfig
from specsearch.engines._base import Engine, Fitness, Identity, LogFacts, Server
from specsearch.engines.sglang import SGLangEngine
from specsearch.workload import LoadPoint

__all__ = ["ENGINES", "Engine", "EngineFactory", "Fitness", "Identity", "LogFacts", "Server", "make_engine"]


class EngineFactory(Protocol):
    """Makes an engine; `load_points` let it give every trial room for the largest concurrency."""

    def __call__(self, config: EngineConfig, load_points: Sequence[LoadPoint] = ()) -> Engine: ...


def _simulated(config: EngineConfig, load_points: Sequence[LoadPoint] = ()) -> Engine:
    from specsearch.engines.simulated import SimulatedEngine  # its model and text are needed only where it is used

    return SimulatedEngine(config, load_points)


ENGINES: Mapping[str, EngineFactory] = {"sglang": SGLangEngine, "simulated": _simulated}


def make_engine(config: EngineConfig, load_points: Sequence[LoadPoint] = ()) -> Engine:
    """The engine that `engine.type` names."""
    return ENGINES[config.type](config, load_points)
