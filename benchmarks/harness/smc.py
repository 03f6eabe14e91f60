"""The work of ``pm.sample_smc``, measured without changing it."""

from __future__ import annotations

import contextlib
import time

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Stages:
    """What the chains of a run of sequential Monte Carlo took and found."""

    seconds: float = 0.0
    evaluations: int = 0
    log_evidences: list[float] = field(default_factory=list)


def measured_kernel(base, record: Stages):
    """A kernel of ``pm.sample_smc`` that notes its work and is otherwise as it was."""

    @contextlib.contextmanager
    def timed(sign: float = 1.0) -> Iterator[None]:
        begin = time.process_time()
        try:
            yield
        finally:
            record.seconds += sign * (time.process_time() - begin)

    class Measured(base):
        def initialize_population(self):
            with timed(-1.0):
                return super().initialize_population()

        def _initialize_kernel(self):
            with timed():
                super()._initialize_kernel()
            record.evaluations += self.draws

        def update_beta_and_weights(self):
            with timed():
                super().update_beta_and_weights()

        def step(self):
            with timed():
                stats = super().step()
            record.evaluations += (self.n_steps - 1) * self.draws
            return stats

        def sample_settings(self):
            record.log_evidences.append(float(self.log_marginal_likelihood))
            return super().sample_settings()

    return Measured
