"""Scalar expressions, which can be differentiated and printed as LLVM code."""

from amc_pymc.engine.graph import GROUP, LOCAL, ROW, Families, Family, Graph

__all__ = ["GROUP", "LOCAL", "ROW", "Families", "Family", "Graph"]
