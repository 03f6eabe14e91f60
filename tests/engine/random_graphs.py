"""Random expressions whose values are known without simplification."""

import numpy as np

from amc_pymc.engine import Graph
from amc_pymc.engine.functions import ARRAY

UNARY = (
    *("neg", "exp", "log", "sqrt", "sigmoid", "softplus", "tanh", "sin", "abs", "erf", "arctan"),
    *("log1p", "expm1", "gammaln", "sign", "floor", "float"),
)
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
COMPARISONS = ("lt", "gt", "le", "ge", "eq", "ne")
SMOOTH = ("neg", "exp", "sigmoid", "softplus", "tanh", "sin", "erf", "arctan", "add", "sub", "mul")
CONSTANTS = (0.0, 1.0, -1.0, 2.0, 0.5, 0.3, -1.7)


class Grower:
    """Grows a graph, and beside it the values of the same operations without any simplification.

    Parameters
    ----------
    rng : Generator
    values : dict
        Of leaves, by ``(op, value)``; those of ``entry`` by position.
    """

    def __init__(self, rng, values):
        self.rng = rng
        self.graph = Graph()
        self.numbers: list[tuple[int, np.ndarray]] = []
        self.truths: list[tuple[int, np.ndarray]] = []
        for (op, value), array in values.items():
            if op == "entry":
                node = self.graph.make("entry", self.graph.const(value), value="eta")
            else:
                node = self.graph.make(op, value=value)
            self.numbers.append((node, np.asarray(array, float)))
        self.n_leaves = len(self.numbers)
        for c in CONSTANTS:
            self.numbers.append((self.graph.const(c), np.asarray(c)))

    def _pick(self):
        """Any number, with a preference for new ones."""
        k = max(self.rng.integers(len(self.numbers), size=2))
        return self.numbers[k]

    def grow(self, steps, smooth=False):
        """Add operations at random."""
        for _ in range(steps):
            kind = self.rng.random()
            if kind < 0.1 and not smooth:
                self._compare()
            elif kind < 0.25 and self.truths and not smooth:
                self._choose()
            elif kind < 0.6:
                self._apply(self._one_of(UNARY, smooth), 1)
            else:
                self._apply(self._one_of(BINARY, smooth), 2)
        return self

    def _one_of(self, ops, smooth):
        ops = [op for op in ops if not smooth or op in SMOOTH]
        return ops[self.rng.integers(len(ops))]

    def _apply(self, op, number):
        nodes, values = zip(*(self._pick() for _ in range(number)))
        with np.errstate(all="ignore"):
            value = np.asarray(ARRAY[op](*values), float)
        if np.all(np.isfinite(value)) and np.all(np.abs(value) < 1e6):
            self.numbers.append((self.graph.make(op, *nodes), value))

    def _compare(self):
        op = COMPARISONS[self.rng.integers(len(COMPARISONS))]
        (a, x), (b, y) = self._pick(), self._pick()
        node, value = self.graph.make(op, a, b), ARRAY[op](x, y)
        if self.truths:
            other, known = self.truths[self.rng.integers(len(self.truths))]
            op = ("and", "or", "xor", "not", "xor")[self.rng.integers(5)]
            if op == "not":
                node, value = self.graph.make("not", node), ~value
            else:
                node, value = self.graph.make(op, node, other), ARRAY[op](value, known)
        self.truths.append((node, value))

    def _choose(self):
        condition, truth = self.truths[self.rng.integers(len(self.truths))]
        (a, x), (b, y) = self._pick(), self._pick()
        self.numbers.append((self.graph.make("switch", condition, a, b), np.where(truth, x, y)))

    @property
    def grown(self):
        """Nodes and values, leaves and constants left out."""
        return self.numbers[self.n_leaves + len(CONSTANTS) :]
