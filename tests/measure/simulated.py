"""A runner with a simulated clock: drift, noise and slow modes are known exactly."""

from __future__ import annotations

import numpy as np

from tests.measure import fake_runner


class SimulatedRunner(fake_runner.Runner):
    """Times are ``us`` of the artifact, times noise, a random walk, and the unit's mode.

    The mode flips with probability ``flips`` at every call of ``time`` and ``probe``.
    """

    def __init__(self, seed=0, *, noise=0.03, walk=0.0, flips=0.0, slow=4.0):
        self.random = np.random.default_rng(seed)
        self.noise = noise
        self.walk = walk
        self.flips = flips
        self.slow = slow
        self.is_slow = False
        self.level = 1.0
        self.batches = []
        self.rounds = 0
        self.shuffles = set()

    def load(self, artifact, launch):
        return super().load(artifact, launch)

    def flip(self):
        if self.random.random() < self.flips:
            self.is_slow = not self.is_slow

    def time(self, kernels, arguments, batches, rounds, *, cold, seed):
        self.flip()
        self.batches.append(tuple(batches))
        self.rounds += rounds
        self.shuffles.add(seed)
        for kernel, sets in zip(kernels, arguments, strict=True):
            for one in sets:
                kernel.call(one)
        out = np.zeros((rounds, len(kernels)))
        mode = self.slow if self.is_slow else 1.0
        for number in range(rounds):
            self.level *= np.exp(self.walk * self.random.standard_normal())
            for k, kernel in enumerate(kernels):
                jitter = np.exp(self.noise * self.random.standard_normal())
                us = kernel.options.get("us", 10.0) * (1.5 if cold else 1.0)
                out[number, k] = 1000 * us * batches[k] * jitter * mode * self.level
        return out.astype(np.int64)

    def probe(self, names):
        self.flip()
        speed = 2300.0 / (self.slow if self.is_slow else 1.0)
        return {name: speed * np.exp(0.02 * self.random.standard_normal()) for name in names}
