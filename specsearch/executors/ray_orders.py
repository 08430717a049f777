"""What a study tells its running trials; imports nothing, so that its process starts quickly."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Orders:
    """What the study tells its running trials."""

    stop: str | None = None
    hard: bool = False
    over: bool = False  # nothing more will be launched: parked trials may go


class SpecsearchOrders:
    """Where running trials look up their orders, whatever node they are on."""

    def __init__(self) -> None:
        self._orders = Orders()

    def give(self, orders: Orders) -> None:
        self._orders = orders

    def current(self) -> Orders:
        return self._orders
