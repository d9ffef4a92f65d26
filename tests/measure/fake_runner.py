"""A runner whose artifacts are JSON files naming a Python kernel, good or faulty.

Every kernel computes ``c = a @ b`` in float32; most have one fault.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from tfsearch.measure.buffers import HostArguments

SPEEDS: list[float] = []


def product(arrays):
    np.matmul(arrays["a"], arrays["b"], out=arrays["c"])


class Kernel:
    def __init__(self, options, launch):
        self.options = options
        self.launch = launch
        self.calls = 0
        self.kept = {}
        self.previous = None
        self.random = np.random.default_rng()

    def bind(self, inputs):
        if self.options["kernel"] == "bind_error":
            raise OSError("sticky device error 700")
        return HostArguments(self.launch, inputs)

    def call(self, arguments):
        self.calls += 1
        time.sleep(self.options.get("sleep_s", 0.0))
        getattr(self, self.options["kernel"])(arguments)

    def right(self, arguments):
        product(arguments.arrays)

    def off_by_one_element(self, arguments):
        arrays = arguments.arrays
        product(arrays)
        arrays["c"][-1, -1] -= arrays["a"][-1, -1] * arrays["b"][-1, -1]

    def zeros(self, arguments):
        arguments.arrays["c"][...] = 0

    def partial_writer(self, arguments):
        arrays = arguments.arrays
        arrays["c"][:-1] = arrays["a"][:-1] @ arrays["b"]

    def writes_nothing(self, arguments):
        pass

    def corrupts_input(self, arguments):
        product(arguments.arrays)
        arguments.arrays["a"] *= np.float32(0.5)

    def returns_previous(self, arguments):
        arrays = arguments.arrays
        fresh = arrays["a"] @ arrays["b"]
        arrays["c"][...] = fresh if self.previous is None else self.previous
        self.previous = fresh

    def right_ten_times(self, arguments):
        product(arguments.arrays)
        if self.calls > 10:
            arguments.arrays["c"][0, 0] += 1

    def kept_by_pointer(self, arguments):
        key = arguments.address("a")
        if key not in self.kept:
            product(arguments.arrays)
            self.kept[key] = arguments.read("c")
        arguments.arrays["c"][...] = self.kept[key]

    def kept_by_pointer_after_verification(self, arguments):
        # The seven verification calls use other buffers than timing.
        if self.calls <= 7:
            product(arguments.arrays)
        else:
            self.kept_by_pointer(arguments)

    def stops_working(self, arguments):
        # Right while it is verified, then nothing: the fastest kernel there is.
        if self.calls <= 7:
            product(arguments.arrays)

    def lower_precision(self, arguments):
        arrays = arguments.arrays
        half = arrays["a"].astype(np.float16) @ arrays["b"].astype(np.float16)
        arrays["c"][...] = half.astype(np.float32)

    def nondeterministic(self, arguments):
        product(arguments.arrays)
        c = arguments.arrays["c"]
        i, j = (int(self.random.integers(n)) for n in c.shape)
        # One ulp, in a pass whose bounds allow it.
        if not np.array_equal(c, np.rint(c)):
            c[i, j] = np.nextafter(c[i, j], np.float32(np.inf))

    def leaves_a_thread(self, arguments):
        product(arguments.arrays)
        if self.calls == 1:
            library = ctypes.CDLL(None)  # strspn holds no lock of the interpreter's
            text = ctypes.create_string_buffer(b"a" * (1 << 22))
            threading.Thread(
                target=lambda: [library.strspn(text, b"a") for _ in range(1 << 30)], daemon=True
            ).start()

    def leaves_a_process(self, arguments):
        product(arguments.arrays)
        if self.calls == 1 and os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])

    def crash(self, arguments):
        os.kill(os.getpid(), signal.SIGSEGV)

    def null_pointer(self, arguments):
        ctypes.string_at(0)

    def abort(self, arguments):
        os.write(2, b"free(): invalid pointer\n")
        os.abort()

    def exits(self, arguments):
        os._exit(7)

    def hang(self, arguments):
        while True:
            time.sleep(1)

    def memory_hog(self, arguments):
        self.kept["hog"] = [np.ones(1 << 27) for _ in range(64)]

    def killed(self, arguments):
        os.kill(os.getpid(), signal.SIGKILL)

    def noisy(self, arguments):
        os.write(1, b'{"kind": "result", "result": {"status": "ok"}}\n\xff\x00')
        print("noise" * 100)
        product(arguments.arrays)

    def out_of_bounds(self, arguments):
        product(arguments.arrays)
        end = arguments.address("c") + arguments.arrays["c"].nbytes
        ctypes.memset(end, 0, 4)

    def device_error(self, arguments):
        raise OSError("illegal memory access")

    def bug(self, arguments):
        raise KeyError("nobody expected this")

    def moved_elsewhere(self, arguments):
        threading.Timer(0.05, product, [arguments.arrays]).start()

    def damages_later(self, arguments):
        product(arguments.arrays)
        threading.Timer(0.4, os.kill, [os.getpid(), signal.SIGSEGV]).start()


class Runner:
    def load(self, artifact: Path, launch):
        options = json.loads(artifact.read_text())
        if options["kernel"] == "load_error":
            raise OSError("undefined symbol: kernel")
        return Kernel(options, launch)

    def time(self, kernels, arguments, batches, rounds, *, cold, seed):
        order = np.random.default_rng(seed)
        out = np.zeros((rounds, len(kernels)), dtype=np.int64)
        for number in range(rounds):
            for k in order.permutation(len(kernels)):
                sets = arguments[k]
                start = time.perf_counter_ns()
                for index in range(batches[k]):
                    kernels[k].call(sets[index % len(sets)])
                spent = time.perf_counter_ns() - start
                factor = kernels[k].options.get("slower", 1.0)
                out[number, k] = int(spent * factor)
        return out

    def probe(self, names):
        return {name: SPEEDS.pop(0) if SPEEDS else 1.0 for name in names}

    def close(self):
        pass


def make(selector):
    if selector == "absent":
        raise OSError("no such device")
    return Runner()


def numpy_baseline(workload, launch):
    def run(inputs, outputs):
        np.matmul(inputs["a"], inputs["b"], out=outputs["c"])

    return run


def wrong_baseline(workload, launch):
    def run(inputs, outputs):
        outputs["c"][...] = 1

    return run
