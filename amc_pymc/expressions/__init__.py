"""Scalar expressions that are differentiated and printed as compiled code."""

from amc_pymc.expressions.families import Families, Family, beside_parameters
from amc_pymc.expressions.graph import GROUP, LOCAL, ROW, Graph, Node

__all__ = ["GROUP", "LOCAL", "ROW", "Families", "Family", "Graph", "Node", "beside_parameters"]
