"""Samplers with racing decisions, as functions ``init`` and ``step`` over the state of a chain.

Each sampler has a module: :mod:`~amc_pymc.tall.samplers.metropolis` and :mod:`~amc_pymc.tall.samplers.gibbs`,
which also draws the index of a product space (:mod:`~amc_pymc.tall.samplers.index`).
``init(sampler, rng, tune=, draws=)`` creates a chain. ``step(sampler, chain, x, rng, tuning=)`` makes one
draw and returns the new point and counts. :func:`~amc_pymc.tall.samplers.chain.report` runs audits and
returns statistics. A sampler consists of a :class:`~amc_pymc.tall.samplers.fit.Preparation` of a
model and settings.
"""
