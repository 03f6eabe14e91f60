r"""Author coreference, which mentions refer to the same person, by annealed Gibbs sampling of a CRF.

Section 5.3 and appendix C.3, figure 3, of Chen & Ghahramani (2016), *Scalable Discrete Sampling as
a Multi-Armed Bandit Problem*, ICML, PMLR 48:2492-2501; the model is that of Singh et al. (2012).
Mention i has features x_i and a cluster y_i, and

.. math:: p(y | x) \propto \exp \sum_{i < j,\, y_i = y_j} f(x_i, x_j),
          \qquad f(x_i, x_j) = a - b \lVert x_i - x_j \rVert^2 .

Each pair counts once. (The paper's joint density sums over ordered pairs, which counts each pair twice,
while its conditional counts each once; the two agree only if the sum is over unordered pairs.) Given the
others, mention i joins the non-empty cluster C with log weight :math:`\sum_{j \in C} f(x_i, x_j)`,
or an empty one with log weight 0. At temperature T the choice is the argmax of the sums plus T
times Gumbel noise: arms with populations of different sizes, raced by
:func:`models.race_sums.race_sums`.

The paper's data (DBLP, Rexa) are not available. They are replaced by labelled handwritten digits, ten entities
(:func:`digit_mentions`), and by a generator with power-law cluster sizes (:func:`power_law_mentions`).
Like author names in the paper, *blocks* determine which mentions can belong to the same entity.
"""

from __future__ import annotations

import functools
import time

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numba import typeof, types

from amc_pymc.engine.jit import first_class, njit
from amc_pymc.rng import as_generator
from models.race_sums import Arms, SumsRule, race_sums

_READ_ALL = 2**62


@dataclass(frozen=True)
class Mentions:
    """Mentions to cluster: features (N, d), block and true entity (N,), and the factor's a and b."""

    features: np.ndarray
    block: np.ndarray
    entity: np.ndarray
    offset: float
    slope: float


@dataclass(frozen=True)
class Trace:
    """History of a run; arrays have one entry per sweep, preceded by the start.

    ``evaluations`` is the cumulative number of factors f(x_i, x_j) that sweeps have computed, without
    audits; ``seconds`` is the time, including audits. ``audited`` decisions were repeated on all
    factors with the same Gumbel noise; ``wrong`` is the number that differed. ``read_share`` is
    the number of factors read in a sweep over the total number.
    """

    f1: np.ndarray
    evaluations: np.ndarray
    read_share: np.ndarray
    seconds: np.ndarray
    clusters: np.ndarray
    audited: np.ndarray
    wrong: np.ndarray
    labels: np.ndarray


# --- data ----------------------------------------------------------------------------------------


def digit_mentions(*, seed: int = 0) -> Mentions:
    """Load half of scikit-learn's 1,797 handwritten digits as mentions of ten entities, in one block.

    The features are the nine discriminants, and a and b a logistic regression of "same digit" on
    the squared distance of a pair, both fitted on the other half.
    """
    from sklearn.datasets import load_digits
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression

    images, digits = load_digits(return_X_y=True)
    order = as_generator(seed).permutation(digits.size)
    known, asked = order[: digits.size // 2], order[digits.size // 2 :]
    discriminants = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto")
    discriminants.fit(images[known], digits[known])
    x = discriminants.transform(images[known])
    i, j = np.triu_indices(known.size, 1)
    squared = np.sum((x[i] - x[j]) ** 2, axis=1)
    fit = LogisticRegression(C=1e6).fit(squared[:, None], digits[known][i] == digits[known][j])
    return Mentions(
        np.ascontiguousarray(discriminants.transform(images[asked])),
        np.zeros(asked.size, dtype=np.int64), digits[asked].astype(np.int64),
        float(fit.intercept_[0]), float(-fit.coef_[0, 0]),
    )  # fmt: skip


def power_law_mentions(
    n_entities: int = 400, *, n_blocks: int = 20, exponent: float = 1.6, largest: int = 2000,
    n_features: int = 32, noise: float = 1.0, seed: int = 0,
) -> Mentions:  # fmt: skip
    """Simulate mentions of entities whose numbers of mentions follow a power law, P(s) ~ s^-exponent.

    Entities have centres N(0, I), mentions add ``noise`` times N(0, I); f is the log density ratio
    of a pair's difference under "same entity" against "different entities". The largest size
    occurs at least once; entities are assigned to blocks at random.

    Parameters
    ----------
    n_entities, n_blocks : int
        Numbers of entities and of blocks.
    exponent, largest : float, int
        Sizes are 1, ..., ``largest``, with probabilities of power ``-exponent``.
    n_features, noise : int, float
        Dimension d, and standard deviation of a mention around its entity.
    seed : int
    """
    rng = as_generator(seed)
    weights = np.arange(1, largest + 1) ** -float(exponent)
    sizes = 1 + rng.choice(largest, size=n_entities, p=weights / weights.sum())
    sizes[0] = largest
    block_of_entity = rng.permutation(n_entities) % n_blocks
    entity = np.repeat(np.arange(n_entities), sizes)
    centres = rng.standard_normal((n_entities, n_features))
    features = centres[entity] + noise * rng.standard_normal((entity.size, n_features))
    same, different = 2.0 * noise**2, 2.0 * (1.0 + noise**2)
    return Mentions(
        features, block_of_entity[entity], entity, 0.5 * n_features * np.log(different / same),
        0.5 * (1.0 / same - 1.0 / different),
    )  # fmt: skip


def b_cubed_f1(labels, entity) -> float:
    """Compute the B-cubed F1 of a clustering (Bagga & Baldwin 1998).

    The precision of a mention is the share of its cluster that has the same entity; the recall is the share
    of its entity that is in its cluster. F1 is the harmonic mean of the two averages over mentions.

    Examples
    --------
    >>> from models.coreference import b_cubed_f1
    >>> round(b_cubed_f1([0, 0, 0], [5, 5, 6]), 4)
    0.7143
    """
    _, labels = np.unique(labels, return_inverse=True)
    _, entity = np.unique(entity, return_inverse=True)
    both = labels * (entity.max() + 1) + entity
    together = np.bincount(both)[both]
    precision = np.mean(together / np.bincount(labels)[labels])
    recall = np.mean(together / np.bincount(entity)[entity])
    return float(2.0 * precision * recall / (precision + recall))


# --- factors -------------------------------------------------------------------------------------


class Factor(NamedTuple):
    """Features and parameters from which the factors of one mention are computed."""

    features: np.ndarray
    offset: float
    slope: float
    mention: int


@functools.cache
def pair_factors():
    """Return the compiled rewards of a race: f(x_i, x_j) for the mentions j of a cluster."""
    context = typeof(Factor(np.zeros((1, 1)), 0.0, 0.0, 0))
    signature = types.float64[::1](types.int64, types.int64[::1], context)

    @first_class(signature)
    def rewards(arm, rows, factor):
        x = factor.features
        i, d = factor.mention, x.shape[1]
        out = np.empty(rows.size)
        for k in range(rows.size):
            j = rows[k]
            squared = 0.0
            for c in range(d):
                squared += (x[i, c] - x[j, c]) ** 2
            out[k] = factor.offset - factor.slope * squared
        return out

    return rewards


# --- clusters ------------------------------------------------------------------------------------


class Clusters(NamedTuple):
    """Clusters as growable lists of mentions; mentions move in O(1).

    Cluster c holds ``members[start[c] : start[c] + size[c]]`` and has a capacity of ``room[c]``;
    ``place[i]`` is the position of mention i. A block with n mentions owns n cluster numbers,
    ``slots[first_slot[b] : first_slot[b + 1]]``, of which the first ``n_open[b]`` are not empty;
    ``slot_place`` is the inverse of ``slots``. ``end[0]`` is the first free place of ``members``.
    """

    of: np.ndarray
    start: np.ndarray
    room: np.ndarray
    size: np.ndarray
    members: np.ndarray
    place: np.ndarray
    slots: np.ndarray
    slot_place: np.ndarray
    first_slot: np.ndarray
    n_open: np.ndarray
    end: np.ndarray


def singletons(block: np.ndarray) -> Clusters:
    """Return clusters with one mention each."""
    n = block.size
    by_block = np.argsort(block, kind="stable")
    of = np.empty(n, dtype=np.int64)
    of[by_block] = np.arange(n)
    counts = np.bincount(block)
    members = np.zeros(8 * n, dtype=np.int64)
    members[:n] = by_block
    return Clusters(
        of=of, start=np.arange(n), room=np.ones(n, dtype=np.int64), size=np.ones(n, dtype=np.int64),
        members=members, place=of.copy(), slots=np.arange(n), slot_place=np.arange(n),
        first_slot=np.concatenate([[0], np.cumsum(counts)]), n_open=counts.copy(),
        end=np.array([n]),
    )  # fmt: skip


@njit(cache=True)
def _swap_slots(clusters, a, b):
    slots, where = clusters.slots, clusters.slot_place
    slots[a], slots[b] = slots[b], slots[a]
    where[slots[a]], where[slots[b]] = a, b


@njit(cache=True)
def take_out(clusters, i, block):
    """Remove mention i from its cluster."""
    c = clusters.of[i]
    last = clusters.start[c] + clusters.size[c] - 1
    moved, hole = clusters.members[last], clusters.place[i]
    clusters.members[hole] = moved
    clusters.place[moved] = hole
    clusters.size[c] -= 1
    clusters.of[i] = -1
    if clusters.size[c] == 0:
        clusters.n_open[block] -= 1
        _swap_slots(
            clusters, clusters.slot_place[c], clusters.first_slot[block] + clusters.n_open[block]
        )


@njit(cache=True)
def _compact(clusters):
    """Pack all clusters to the front, each with twice the capacity that it needs."""
    old = clusters.members.copy()
    end = 0
    for c in range(clusters.size.size):
        n = clusters.size[c]
        for j in range(n):
            i = old[clusters.start[c] + j]
            clusters.members[end + j] = i
            clusters.place[i] = end + j
        clusters.start[c], clusters.room[c] = end, 2 * n
        end += 2 * n
    clusters.end[0] = end


@njit(cache=True)
def _grow(clusters, c):
    """Double the capacity of cluster c, at the end of the pool."""
    n = clusters.size[c]
    room = max(2 * n, 2)
    if clusters.end[0] + room > clusters.members.size:
        _compact(clusters)
        if clusters.room[c] > n:
            return
    start = clusters.end[0]
    for j in range(n):
        i = clusters.members[clusters.start[c] + j]
        clusters.members[start + j] = i
        clusters.place[i] = start + j
    clusters.start[c], clusters.room[c] = start, room
    clusters.end[0] += room


@njit(cache=True)
def put_in(clusters, i, c, block):
    """Insert mention i, which is in no cluster, into cluster c of its block."""
    if clusters.size[c] == clusters.room[c]:
        _grow(clusters, c)
    if clusters.size[c] == 0:
        _swap_slots(
            clusters, clusters.slot_place[c], clusters.first_slot[block] + clusters.n_open[block]
        )
        clusters.n_open[block] += 1
    at = clusters.start[c] + clusters.size[c]
    clusters.members[at] = i
    clusters.place[i] = at
    clusters.size[c] += 1
    clusters.of[i] = c


# --- Gibbs sampling ------------------------------------------------------------------------------


@njit(cache=True)
def sweep(rewards, mentions, clusters, block, order, temperature, rule, audit_share, rng):
    """Sample the cluster of every mention once, in the given order.

    Returns the numbers of factors read, of all factors, of decisions audited and of decisions found wrong.
    """
    read, there, audited, wrong = 0, 0, 0, 0
    exact = SumsRule(rule.delta, _READ_ALL)
    for i in order:
        b = block[i]
        take_out(clusters, i, b)
        n_arms = clusters.n_open[b] + 1
        first = clusters.first_slot[b]
        candidates = clusters.slots[first : first + n_arms]
        bias = np.empty(n_arms)
        for k in range(n_arms):
            bias[k] = -temperature * np.log(rng.standard_exponential())
        arms = Arms(
            clusters.start[candidates], clusters.size[candidates], clusters.members, clusters.place
        )
        factor = Factor(mentions.features, mentions.offset, mentions.slope, i)
        audit = rng.random() < audit_share
        found = race_sums(rewards, factor, arms, bias, rule, rng)
        if found.winner < 0:
            raise FloatingPointError("a factor is not finite")
        if audit:
            audited += 1
            truth = race_sums(rewards, factor, arms, bias, exact, rng)
            wrong += truth.winner != found.winner
        read += found.rows
        for k in range(n_arms):
            there += arms.size[k]
        put_in(clusters, i, candidates[found.winner], b)
    return read, there, audited, wrong


def run_coreference(
    mentions: Mentions, *, race: float | None = 0.05, seed=0, n_sweeps: int = 20,
    hottest: float = 1.0, coldest: float = 0.05, audit_share: float = 0.02,
) -> Trace:  # fmt: skip
    """Run annealed Gibbs sampling from clusters of one mention each.

    Parameters
    ----------
    mentions : Mentions
    race : float, optional
        Guaranteed error delta of a decision; None reads every factor.
    seed : int or Generator
    n_sweeps : int
        Sweeps over all mentions, each in a new random order.
    hottest, coldest : float
        Temperatures of the first and last sweep, geometric in between.
    audit_share : float
        Share of the decisions, drawn before they are raced, that are repeated on all factors.

    Returns
    -------
    Trace

    Examples
    --------
    >>> from models.coreference import power_law_mentions, run_coreference
    >>> mentions = power_law_mentions(20, n_blocks=4, largest=30, noise=0.3)
    >>> bool(run_coreference(mentions, n_sweeps=5).f1[-1] > 0.9)
    True
    """
    rng = as_generator(seed)
    rule = SumsRule(first=_READ_ALL) if race is None else SumsRule(delta=race)
    audit_share = 0.0 if race is None else audit_share
    block = np.unique(mentions.block, return_inverse=True)[1].astype(np.int64)
    features = np.ascontiguousarray(mentions.features, dtype=np.float64)
    factor = Factor(features, float(mentions.offset), float(mentions.slope), 0)
    clusters = singletons(block)
    f1 = [b_cubed_f1(clusters.of, mentions.entity)]
    rows = [(0, 0, 0, 0)]
    seconds, n_clusters = [0.0], [block.size]
    for temperature in np.geomspace(hottest, coldest, n_sweeps):
        order = rng.permutation(block.size)
        before = time.perf_counter()
        found = sweep(
            pair_factors(), factor, clusters, block, order, float(temperature), rule,
            float(audit_share), rng,
        )  # fmt: skip
        rows.append(found)
        seconds.append(seconds[-1] + time.perf_counter() - before)
        f1.append(b_cubed_f1(clusters.of, mentions.entity))
        n_clusters.append(int(clusters.n_open.sum()))
    read, there, audited, wrong = np.array(rows).T
    return Trace(
        f1=np.array(f1), evaluations=np.cumsum(read), read_share=read / np.maximum(there, 1),
        seconds=np.array(seconds), clusters=np.array(n_clusters), audited=np.cumsum(audited),
        wrong=np.cumsum(wrong), labels=clusters.of.copy(),
    )  # fmt: skip
