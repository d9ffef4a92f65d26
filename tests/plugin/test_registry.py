"""Targets by name, devices by selector, the default target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.plugin import registry
from tfsearch.plugin.target import Device, Target
from tfsearch.target.null import NullTarget


class Absent(NullTarget):
    name = "absent"
    preference = 90

    def devices(self) -> Sequence[Device]:
        return ()

    def absence(self) -> str:
        return "no such hardware here; buy one"


class Good(NullTarget):
    name = "good"
    preference = 1000


def _broken() -> Target:
    raise ImportError("No module named 'cuda'")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    registry.register("absent", Absent)
    registry.register("good", Good)
    registry.register("broken", _broken)
    yield
    for name in ("absent", "good", "broken"):
        registry.unregister(name)


def test_installed_targets_are_found_by_entry_point_and_loaded_on_demand() -> None:
    assert {"null", "x86", "absent", "good", "broken"} <= set(registry.names())
    null = registry.get("null")
    assert null.name == "null"
    assert registry.get("null") is null


def test_an_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"known targets:.*null.*x86") as caught:
        registry.get("sparc")
    assert caught.value.code == "target.unknown"


def test_an_absent_target_can_be_got_but_has_no_device() -> None:
    target = registry.get("absent")
    with pytest.raises(UnavailableError, match="buy one") as caught:
        registry.device(target)
    assert caught.value.code == "target.absent"


def test_a_target_whose_package_is_missing_says_what_to_install() -> None:
    with pytest.raises(UnavailableError, match=r"install tfsearch\[broken\]"):
        registry.get("broken")


def test_a_device_is_named_by_selector_or_name() -> None:
    target = registry.get("null")
    first = registry.device(target)
    assert registry.device(target, "null") == first
    assert registry.device(target, first.record.name) == first
    with pytest.raises(RequestError, match="present: null") as caught:
        registry.device(target, "1")
    assert caught.value.code == "device.unknown"


def test_the_preferred_present_target_is_the_default() -> None:
    assert registry.best_present().name == "good"


def test_the_null_target_is_never_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "names", lambda: ("absent", "broken", "null"))
    with pytest.raises(UnavailableError, match="buy one") as caught:
        registry.best_present()
    assert caught.value.code == "target.none-present"
    assert "cuda" in caught.value.message
