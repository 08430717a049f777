"""NVML as a module-like object: cards as values, errors on request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 2**20


class NVMLError(Exception):
    pass


class FunctionNotFound(NVMLError):
    pass


class NotSupported(NVMLError):
    pass


class Unknown(NVMLError):
    pass


@dataclass
class Card:
    """One GPU; `used_mib` is what v2 calls used, v1 adds what is reserved."""

    uuid: str
    used_mib: int | Callable[[], int] = 0
    reserved_mib: int = 0
    pids: Sequence[int] = ()
    mig: int = 0
    no_v2: type[NVMLError] | None = None
    lost: bool = False
    name: str = "NVIDIA H200"


@dataclass
class FakeNvml:
    """What specsearch asks of pynvml, answered from the cards."""

    cards: list[Card] = field(default_factory=list)
    driver: str | bytes = "580.65.06"
    NVMLError: type[Exception] = NVMLError
    nvmlMemory_v2: int = 33554472

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return self.driver

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        if index >= len(self.cards):
            raise NVMLError("Invalid Argument")
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        return next(card for card in self.cards if card.uuid == uuid)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> Any:
        if card.lost:
            raise NVMLError("GPU is lost")
        if version and card.no_v2:
            raise card.no_v2("v2")
        used_mib = card.used_mib() if callable(card.used_mib) else card.used_mib
        memory = SimpleNamespace(total=143771 * MIB, used=used_mib * MIB)
        if version:
            memory.reserved = card.reserved_mib * MIB
        else:
            memory.used += card.reserved_mib * MIB
        return memory

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        return [card.mig, card.mig]

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        if card.mig:
            raise NotSupported("MIG")
        return SimpleNamespace(gpu=25, memory=0)

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return 76_500

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        raise FunctionNotFound("v3")

    def nvmlDeviceGetComputeRunningProcesses_v2(self, card: Card) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in card.pids]
