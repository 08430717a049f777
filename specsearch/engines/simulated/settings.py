"""What the launching process tells the simulated server through its environment."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specsearch.engines.simulated.faults import fault_problems
from specsearch.engines.simulated.profiles import DRAFTERS, GPUS, TARGETS

VARIABLE = "SPECSEARCH_SIMULATED"
GPU_STATE_VARIABLE = "SPECSEARCH_SIMULATED_GPUS"
GPU_INDICES_VARIABLE = "SPECSEARCH_SIMULATED_GPU_INDICES"


@dataclass(frozen=True, slots=True)
class Simulation:
    """The machine to pretend to be, and what goes wrong with it."""

    gpu: str = "rtx-pro-6000"
    target: str = "kimi-k2.5"
    drafter: str = "eagle3"
    time_scale: float = 0.02  # seconds that a second of loading takes
    seed: int = 0
    noise: float = 0.01
    faults: Sequence[Mapping[str, object]] = ()

    def as_json(self) -> str:
        """The value of the variable; short, since it is part of the command that users paste."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        default = Simulation()
        kept = {name: value for name, value in values.items() if value != getattr(default, name)}
        return json.dumps(kept | {"faults": list(self.faults)} if self.faults else kept, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Simulation":
        """Read the variable; raises ValueError with a sentence."""
        values = json.loads(text)
        unknown = values.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(f"{VARIABLE} has unknown keys: {', '.join(sorted(unknown))}")
        simulation = cls(**values)
        problems = simulation.problems()
        if problems:
            raise ValueError(f"{VARIABLE}: {'; '.join(problems)}")
        return simulation

    def problems(self) -> list[str]:
        """What does not exist or cannot be; sentences."""
        found = []
        for what, value, known in (
            ("gpu", self.gpu, GPUS),
            ("target", self.target, TARGETS),
            ("drafter", self.drafter, DRAFTERS),
        ):
            if value not in known:
                found.append(f"engine.simulated.{what}: {value!r} does not exist; known are {', '.join(known)}")
        if self.time_scale < 0 or self.noise < 0:
            found.append("engine.simulated: time_scale and noise cannot be negative")
        return found + fault_problems(self.faults)


def simulation_of_environment() -> Simulation:
    """What this process was told; raises ValueError when it cannot be read."""
    return Simulation.from_json(os.environ.get(VARIABLE, "{}"))
