"""Ctrl-C as the session sees it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tfsearch.tune.interrupt import Interrupts


def _ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_is_noted_and_the_second_raises() -> None:
    with Interrupts() as interrupts:
        _ctrl_c()
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            _ctrl_c()


def test_waiting_is_cut_short() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.waiting():
            _ctrl_c()
        with pytest.raises(KeyboardInterrupt), interrupts.waiting():
            raise AssertionError("nothing waits after Ctrl-C")


def test_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_of_the_main_thread_signals_are_left_alone() -> None:
    seen: list[object] = []

    def work() -> None:
        with Interrupts() as interrupts, interrupts.waiting():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
