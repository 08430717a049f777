"""The simulated engine: a real server process with SGLang's surface and a physical model in place of a GPU."""

from specsearch.engines.simulated.engine import SimulatedEngine

__all__ = ["SimulatedEngine"]
