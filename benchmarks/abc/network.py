"""The classifier of the published protocol, compiled: scikit-learn's ``MLPClassifier`` in single precision, three times as fast."""

from __future__ import annotations

import itertools
import math

import numpy as np

from amc_pymc.engine.jit import njit

#: Settings of ``MLPClassifier``: Adam, penalty, batches, and when training stops.
_RATE, _ONE, _TWO, _TINY = 0.001, 0.9, 0.999, 1e-8
_PENALTY, _BATCH = 1e-4, 200
_TOLERANCE, _PATIENCE = 1e-4, 10


class Network:
    """Binary classifier with two hidden layers, trained as ``MLPClassifier(random_state=seed)`` would be.

    Initial weights, order of the data, batches, Adam, penalty and stopping rule are those of scikit-learn for the same
    seed. Only rounding differs, which training amplifies in time.

    Parameters
    ----------
    width : int
        Units of each of the two hidden layers, which are rectified.
    max_iter : int
        Maximum number of epochs.
    seed : int
        Seed of initial weights and of the order of the data.

    Attributes
    ----------
    losses : list of float
        Mean loss of each epoch.
    """

    def __init__(self, width: int, *, max_iter: int, seed: int):
        self.width, self.max_iter, self.seed = width, max_iter, seed
        self.losses: list[float] = []

    def fit(self, x: np.ndarray, y: np.ndarray) -> Network:
        """Train on points (n, D) and labels (n,), 0 or 1."""
        rng = np.random.RandomState(self.seed)  # scikit-learn's generator
        x = np.ascontiguousarray(x, np.float32)
        y = np.asarray(y, np.float32)
        sizes = (x.shape[1], self.width, self.width, 1)
        coefficients, intercepts = [], []
        for n_in, n_out in itertools.pairwise(sizes):
            bound = math.sqrt(6.0 / (n_in + n_out))
            coefficients.append(rng.uniform(-bound, bound, (n_in, n_out)).astype(np.float32))
            intercepts.append(rng.uniform(-bound, bound, n_out).astype(np.float32))
        self.weights = (*coefficients, *intercepts)
        moments = tuple(np.zeros((2, w.size), np.float32) for w in self.weights)
        order, steps, best, idle = np.arange(len(x)), 0, math.inf, 0
        self.losses = []
        for _ in range(self.max_iter):
            shuffle = np.arange(len(x))
            rng.shuffle(shuffle)
            order = order[shuffle]
            loss = _epoch(x, y, order, min(_BATCH, len(x)), steps, self.weights, moments)
            steps += math.ceil(len(x) / min(_BATCH, len(x)))
            self.losses.append(loss)
            idle = idle + 1 if loss > best - _TOLERANCE else 0
            best = min(best, loss)
            if idle > _PATIENCE:
                break
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return labels (n,) of points (n, D)."""
        w1, w2, w3, b1, b2, b3 = self.weights
        hidden = np.maximum(np.asarray(x, np.float32) @ w1 + b1, 0.0)
        hidden = np.maximum(hidden @ w2 + b2, 0.0)
        return ((hidden @ w3 + b3)[:, 0] > 0.0).astype(int)


@njit(cache=True)
def _epoch(
    x: np.ndarray,
    y: np.ndarray,
    order: np.ndarray,
    batch: int,
    steps: int,
    weights: tuple,
    moments: tuple,
) -> float:
    """Take one step of Adam for each batch; return the mean loss."""
    w1, w2, w3, b1, b2, b3 = weights
    m1, m2, m3, c1, c2, c3 = moments
    n, total = len(x), 0.0
    for start in range(0, n, batch):
        rows = order[start : start + batch]
        size = len(rows)
        data = x[rows]
        first = np.dot(data, w1)
        _rectify(first, b1)
        second = np.dot(first, w2)
        _rectify(second, b2)
        out = np.dot(second, w3)
        squares = _squares(w1) + _squares(w2) + _squares(w3)
        total += size * _error(out, b3, y, rows) + 0.5 * _PENALTY * squares
        g3 = np.dot(second.T, out)
        back = np.dot(out, w3.T)
        _stop(back, second)
        g2 = np.dot(first.T, back)
        before = np.dot(back, w2.T)
        _stop(before, first)
        g1 = np.dot(data.T, before)
        steps += 1
        rate = _RATE * math.sqrt(1.0 - _TWO**steps) / (1.0 - _ONE**steps)
        each = 1.0 / size
        _adam(w3.ravel(), g3.ravel(), m3, rate, each, _PENALTY)
        _adam(w2.ravel(), g2.ravel(), m2, rate, each, _PENALTY)
        _adam(w1.ravel(), g1.ravel(), m1, rate, each, _PENALTY)
        _adam(b3, _column_sums(out), c3, rate, each, 0.0)
        _adam(b2, _column_sums(back), c2, rate, each, 0.0)
        _adam(b1, _column_sums(before), c1, rate, each, 0.0)
    return total / n


@njit(cache=True)
def _rectify(values: np.ndarray, intercepts: np.ndarray) -> None:
    zero = np.float32(0.0)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            values[i, j] = max(values[i, j] + intercepts[j], zero)


@njit(cache=True)
def _stop(gradient: np.ndarray, values: np.ndarray) -> None:
    """Let no gradient pass through units that are at zero."""
    zero = np.float32(0.0)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            gradient[i, j] = gradient[i, j] if values[i, j] > zero else zero


@njit(cache=True)
def _error(out: np.ndarray, intercept: np.ndarray, y: np.ndarray, rows: np.ndarray) -> float:
    """Return the mean cross-entropy; change logits to gradients."""
    total, eps = 0.0, 2.0**-23
    for i in range(len(rows)):
        label = y[rows[i]]
        p = 1.0 / (1.0 + math.exp(-float(out[i, 0] + intercept[0])))
        known = min(max(p, eps), 1.0 - eps)
        total -= math.log(known if label > 0.5 else 1.0 - known)
        out[i, 0] = p - label
    return total / len(rows)


@njit(cache=True)
def _squares(values: np.ndarray) -> float:
    flat, total = values.ravel(), 0.0
    for v in flat:
        total += float(v) * float(v)
    return total


@njit(cache=True)
def _column_sums(values: np.ndarray) -> np.ndarray:
    out = np.zeros(values.shape[1], np.float32)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            out[j] += values[i, j]
    return out


@njit(cache=True)
def _adam(
    w: np.ndarray,
    gradient: np.ndarray,
    moments: np.ndarray,
    rate: float,
    each: float,
    penalty: float,
) -> None:
    """Change flat weights by one step."""
    first, second = moments[0], moments[1]
    one, two, tiny = np.float32(_ONE), np.float32(_TWO), np.float32(_TINY)
    not_one, not_two = np.float32(1.0 - _ONE), np.float32(1.0 - _TWO)
    step, share, shrink = np.float32(rate), np.float32(each), np.float32(penalty)
    for i in range(len(w)):
        g = (gradient[i] + shrink * w[i]) * share
        first[i] = one * first[i] + not_one * g
        second[i] = two * second[i] + not_two * g * g
        w[i] -= step * first[i] / (np.sqrt(second[i]) + tiny)
