"""Benchmarks of amc_pymc; see README.md."""
