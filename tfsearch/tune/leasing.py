"""Leases of devices for one session, kept alive by a thread of its own.

A session that shares devices with others measures on one only while it has the device's lease. It
proves to be alive by letting a counter grow; whoever waits takes a lease whose counter has
stood still for ``EXPIRE_S`` while it could be read all the time. A session that could not reach
the database for ``HOLD_S``, half of that, gives its devices up by itself. Both measure by
their own steady clock, so no clock that is set can give a device to two or block it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tfsearch.core.errors import NotSavedError, UnavailableError
from tfsearch.db import Lease, Store
from tfsearch.tune.ownership import own_name

HOLD_S = 10.0
EXPIRE_S = 20.0
BEAT_S = 2.0
POLL_S = 0.5
"""How often a session that waits for a device looks."""
TURN_S = 2.0
"""How long a session keeps a device that another one waits for."""
REST_S = 1.5
"""How long a session that gave a device up does not ask again: the others look meanwhile."""
GAP_S = 5.0
"""Two looks further apart than this say nothing about what happened between them."""


@dataclass(eq=False)
class _Device:
    """What is known of a device: ``term`` is None while another session, or nobody, has it."""

    term: int | None = None
    uses: int = 0
    proved: float = 0.0
    taken: float = 0.0
    wishes: int = 0
    rests: float = 0.0
    seen: Lease | None = None
    seen_since: float = 0.0
    looked: float = 0.0


class DeviceLeases:
    """Keeps the leases of the devices that were asked for; a context manager, for all threads.

    ``clock`` is a steady clock in seconds. The thread is started by the first :meth:`want`.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.holder = f"{own_name()}:{uuid.uuid4().hex[:8]}"
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._devices: dict[str, _Device] = {}
        self._free: dict[str, int] = {}
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def want(self, device: str) -> None:
        """Ask for a device, until :meth:`close`."""
        with self._lock:
            if device in self._devices:
                return
            self._devices[device] = _Device()
            if self._thread is None:
                self._thread = self._started()
        self._wake.set()

    def held(self, device: str) -> bool:
        """Whether this session may measure on the device now."""
        if self._failed is not None:
            raise self._failed
        with self._lock:
            one = self._devices.get(device)
            return one is not None and self._holds(one)

    def usable(self, device: str) -> bool:
        """Whether something may begin on the device now: it is held, and nobody's turn is due."""
        with self._lock:
            one = self._devices.get(device)
            return one is not None and self._holds(one) and not self._due(one)

    def begin(self, device: str) -> bool:
        """Use the device until as many :meth:`end`; False when that may not begin now."""
        with self._lock:
            one = self._devices.get(device)
            if one is None or not self._holds(one) or self._due(one):
                return False
            one.uses += 1
            return True

    def end(self, device: str) -> None:
        """One use has ended. A device that others wait for is theirs after the last one."""
        with self._lock:
            one = self._devices.get(device)
            if one is None or one.uses == 0:
                return
            one.uses -= 1
            due = one.uses == 0 and self._due(one)
        if due:
            self._wake.set()

    def holder_of(self, device: str) -> str:
        """Who had the lease at the last look; "" for nobody and when nothing is known."""
        with self._lock:
            one = self._devices.get(device)
            return "" if one is None or one.seen is None else one.seen.holder

    def close(self) -> None:
        """Give everything back; where that fails, the leases run out."""
        self._stop.set()
        self._wake.set()
        if self._thread is None:
            return
        self._thread.join(timeout=HOLD_S)
        held = {name: one.term for name, one in self._devices.items() if one.term is not None}
        self._devices.clear()
        if {**self._free, **held} and not self._thread.is_alive():
            self._round({}, {}, {**self._free, **held})

    def look(self) -> None:
        """One round over all devices; the thread does this again and again."""
        now = self._clock()
        with self._lock:
            for name, one in list(self._devices.items()):
                if one.term is not None and one.uses == 0 and self._due(one):
                    self._free[name] = one.term
                    self._devices[name] = _Device(rests=now + REST_S)
            hold = {name: one.term for name, one in self._devices.items() if one.term is not None}
            want = {
                name: one.seen if _stands_still(one, now) else None
                for name, one in self._devices.items()
                if one.term is None and one.rests <= now
            }
            free = dict(self._free)
        for name in free:  # what is asked for again is given back first
            want.pop(name, None)
        found = self._round(hold, want, free)
        with self._lock:
            for name in free if found is not None else ():
                self._free.pop(name, None)
            for name, one in self._devices.items():
                if name in hold or name in want:
                    self._learn(one, None if found is None else found.get(name), now)

    def _learn(self, one: _Device, lease: Lease | None, before: float) -> None:
        """``before``: when the round began, the earliest moment at which the lease was so."""
        now = self._clock()
        if lease is None:
            one.seen = None  # it was out of sight: whether it stood still is not known
            return
        if lease.holder == self.holder:
            if one.term != lease.term:
                one.taken = now
            one.term, one.proved, one.wishes = lease.term, before, lease.wishes
            return
        one.term = None
        still = one.seen is not None and _same(one.seen, lease) and now - one.looked <= GAP_S
        if not still:
            one.seen_since = now
        one.seen, one.looked = lease, now

    def _holds(self, one: _Device) -> bool:
        return one.term is not None and self._clock() - one.proved < HOLD_S

    def _due(self, one: _Device) -> bool:
        """Whether others wait and this session has had its turn."""
        turn = self._clock() - one.taken >= TURN_S
        return one.term is not None and one.wishes > 0 and turn

    def _round(
        self, hold: dict[str, int], want: dict[str, Lease | None], free: dict[str, int]
    ) -> dict[str, Lease] | None:
        if not hold and not want and not free:
            return {}
        try:
            return self._store.tend_leases(self.holder, hold=hold, want=want, free=free)
        except (NotSavedError, UnavailableError):
            return None  # what is held runs out by itself

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="leases", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                self.look()
                with self._lock:
                    waiting = any(one.term is None for one in self._devices.values())
                self._wake.wait(POLL_S if waiting else BEAT_S)
        except BaseException as error:  # noqa: BLE001 - raised where a device is asked for
            self._failed = error


def _stands_still(one: _Device, now: float) -> bool:
    return now - one.seen_since >= EXPIRE_S and now - one.looked <= GAP_S


def _same(one: Lease, other: Lease) -> bool:
    return (one.holder, one.term, one.beat) == (other.holder, other.term, other.beat)
