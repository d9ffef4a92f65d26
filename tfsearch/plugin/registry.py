"""How targets are found: entry points in the group ``tfsearch.targets``, loaded when asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.plugin.target import ENTRY_POINT_GROUP, Device, Target

Loader = Callable[[], Target]

_registered: dict[str, Loader] = {}
_loaded: dict[str, Target] = {}


def register(name: str, loader: Loader) -> None:
    """Add a target of this process; it wins over an installed one of the same name."""
    _registered[name] = loader
    _loaded.pop(name, None)


def unregister(name: str) -> None:
    """Take back :func:`register`; an unknown name is a ``KeyError``."""
    del _registered[name]
    _loaded.pop(name, None)


def names() -> tuple[str, ...]:
    """Names of all targets, sorted; none is loaded."""
    return tuple(sorted(_loaders()))


def get(name: str) -> Target:
    """The target of this name, whether its hardware is present or not.

    An unknown name is a ``RequestError`` that lists the known ones; a target whose own packages
    are not installed is an ``UnavailableError`` that says which.
    """
    if name not in _loaded:
        loaders = _loaders()
        if name not in loaders:
            raise RequestError(
                "target.unknown",
                f"unknown target {name!r}; known targets: {', '.join(sorted(loaders))}",
            )
        try:
            _loaded[name] = loaders[name]()
        except ImportError as error:
            raise UnavailableError(
                "target.not-installed",
                f"target {name} cannot be loaded: {error}; install tfsearch[{name}]",
            ) from error
    return _loaded[name]


def device(target: Target, selector: str | None = None) -> Device:
    """A device of the target: the best one, or the one that ``selector`` names.

    ``UnavailableError`` with the target's own advice when none is present; ``RequestError`` that
    lists those present when the selector matches no selector and no device name.
    """
    present = target.devices()
    if not present:
        raise UnavailableError("target.absent", target.absence())
    if selector is None:
        return present[0]
    for candidate in present:
        if selector in (candidate.selector, candidate.record.name):
            return candidate
    known = ", ".join(f"{d.selector} ({d.record.name})" for d in present)
    raise RequestError(
        "device.unknown", f"target {target.name} has no device {selector!r}; present: {known}"
    )


def best_present() -> Target:
    """The preferred target among those with a device here; ties go to the first name.

    Targets of preference 0 are never chosen by default. ``UnavailableError`` that gives every
    target's reason when none qualifies.
    """
    best: Target | None = None
    reasons: list[str] = []
    for name in names():
        try:
            target = get(name)
        except UnavailableError as error:
            reasons.append(error.message)
            continue
        if target.preference <= 0:
            continue
        if not target.devices():
            reasons.append(target.absence())
        elif best is None or target.preference > best.preference:
            best = target
    if best is None:
        why = "; ".join(reasons) or "no target is installed"
        raise UnavailableError("target.none-present", f"no target has a device here: {why}")
    return best


def _loaders() -> dict[str, Loader]:
    installed: dict[str, Loader] = {
        entry.name: entry.load for entry in metadata.entry_points(group=ENTRY_POINT_GROUP)
    }
    return {**installed, **_registered}
