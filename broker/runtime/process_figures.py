"""The processor time and memory that the process uses."""

from __future__ import annotations

import os
import resource
import sys

from broker.base.clock import Clock

__all__ = ["Cpu", "resident_bytes"]


class Cpu:
    """Measures the share of one core, in percent, that the process has used since the last call of ``percent``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ns = clock.monotonic_ns()
        self._used = self._usage()

    @staticmethod
    def _usage() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def percent(self) -> float:
        now_ns, used = self._clock.monotonic_ns(), self._usage()
        past_s = (now_ns - self._at_ns) / 1e9
        share = (used - self._used) / past_s * 100 if past_s > 0 else 0.0
        self._at_ns, self._used = now_ns, used
        return round(share, 1)


def resident_bytes() -> int:
    """Return the physical memory in use, in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # no /proc: only the peak is known, in kilobytes (on macOS in bytes)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
