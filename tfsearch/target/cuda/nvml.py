"""Clocks, power, temperature and throttle reasons of a card, through NVML."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

# <nvml.h>: nvmlClocksThrottleReasons…, bits of nvmlDeviceGetCurrentClocksEventReasons.
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
SM_CLOCK, MEMORY_CLOCK, TEMPERATURE = 1, 2, 0


class Sensors:
    """What NVML reads of one card; empty, with the reason, where NVML is not there."""

    def __init__(self, uuid: str, api: Any = None) -> None:
        self._uuid = uuid
        self._handle: Any = None
        self.problem = ""
        try:
            self._api = import_module("pynvml") if api is None else api
            self._api.nvmlInit()
            self._handle = self._api.nvmlDeviceGetHandleByUUID(uuid.encode())
        except Exception as error:  # noqa: BLE001 - NVML's errors, or no library; said in the record
            self.problem = f"{type(error).__name__}: {error}"

    def read(self) -> Mapping[str, Any]:
        """Now: ``sm_mhz``, ``memory_mhz``, ``power_w``, ``temperature_c``, ``throttle``.

        A value that the card does not give is None; without NVML there is only ``nvml``, the
        reason.
        """
        if self._handle is None:
            return {"nvml": self.problem}
        api, handle = self._api, self._handle
        mask = self._ask(lambda: api.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        power = self._ask(lambda: api.nvmlDeviceGetPowerUsage(handle))
        return {
            "sm_mhz": self._ask(lambda: api.nvmlDeviceGetClockInfo(handle, SM_CLOCK)),
            "memory_mhz": self._ask(lambda: api.nvmlDeviceGetClockInfo(handle, MEMORY_CLOCK)),
            "power_w": None if power is None else power / 1000.0,
            "temperature_c": self._ask(lambda: api.nvmlDeviceGetTemperature(handle, TEMPERATURE)),
            "throttle": None
            if mask is None
            else [name for bit, name in REASONS.items() if mask & bit],
        }

    @staticmethod
    def _ask(call: Any) -> Any:
        try:
            return call()
        except Exception:  # noqa: BLE001 - not every card has every sensor
            return None

    def close(self) -> None:
        """Let NVML go."""
        if self._handle is not None:
            self._ask(self._api.nvmlShutdown)
            self._handle = None
