"""Symmetries of a posterior: labels and signs that can be exchanged.

A mixture of three normals has six copies of every mode, and a factor model has one for every choice of signs. They are
found by trying exchanges of coordinates on the density itself, so a model need not say that it has any. A proposal
that contains the images of all its components covers all copies (Frühwirth-Schnatter 2004,
doi:10.1111/j.1368-423X.2004.00125.x), and is fitted to draws that are moved to one copy.
"""

from __future__ import annotations

import itertools

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from amc_pymc.mixtures import StudentTMixture

#: Largest number of elements along an axis that are exchanged, and of exchanges that are tried.
_LONGEST, _TRIED = 8, 4096
#: Largest number of images of a mode.
_MOST = 720
#: Largest relative change of a log density that counts as rounding.
_ROUNDING = 1e-9
#: Distance in standard deviations within which two images of a mode are one, and beyond which draws hardly pass
#: from one to the other.
_SAME, _APART = 0.5, 4.0
#: Largest number of steps to the centre of one copy.
_FOLDINGS = 20


class Block(NamedTuple):
    """A variable on the unconstrained scale.

    Attributes
    ----------
    places : array of int
        Positions of its elements among the extended coordinates, in the shape of the variable.
    signed : bool
        Whether a change of sign is tried.
    kind : str
        Transform; only variables of one kind change places.
    """

    places: np.ndarray
    signed: bool
    kind: str


class Variables(NamedTuple):
    """Variables that may be exchanged.

    Attributes
    ----------
    blocks : tuple of Block
    sums : tuple of array of int
        Positions in x of the log-ratios of each simplex; the last one of each is an extended coordinate.
    """

    blocks: tuple[Block, ...]
    sums: tuple[np.ndarray, ...]


class _Try(NamedTuple):
    """An exchange and what it consists of: pairs of (block, axes), or blocks whose sign changes."""

    exchange: Exchange
    parts: frozenset[object]


@dataclass(frozen=True, eq=False)
class Symmetries:
    """Exchanges that generate the symmetries of a density.

    Parameters
    ----------
    plain : Images
        The exchange that changes nothing.
    generators : tuple of Exchange
    """

    plain: Images
    generators: tuple[Exchange, ...]

    def holding(self, density: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> Symmetries:
        """Return those of the exchanges that leave a log density as it is at points (P, D) as well."""
        before = density(x)
        kept = [g for g in self.generators if _unchanged(before, density(self.plain.of(x, g)))]
        return replace(self, generators=tuple(kept))

    def images(self, modes: np.ndarray, precisions: np.ndarray) -> Images | None:
        """Return the exchanges that lead to all different images of modes (M, D); None if there are none, or too many.

        ``precisions`` (M, D, D) are minus the Hessians of the log density at the modes.
        """
        found = [*self.plain.exchanges]
        for mode, precision in zip(modes, precisions):
            _extend(found, self.plain, mode[None], precision, self.generators)
            if len(found) > _MOST:
                return None
        return replace(self.plain, exchanges=tuple(found)) if len(found) > 1 else None

    def apart(self, draws: np.ndarray) -> Images | None:
        """Return the group of the exchanges that move a mode far away; None if there are none, or too many.

        Draws (P, D) are from any of its copies.
        """
        whole = self.group()
        if whole is None:
            return None
        folded, centre = whole.folded_draws(draws)
        gaps = np.stack([whole.of(centre[None], g)[0] for g in self.generators]) - centre
        distance = np.vecdot(
            gaps, np.linalg.lstsq(np.cov(folded.T).reshape(2 * centre.shape), gaps.T)[0].T
        )
        far = tuple(itertools.compress(self.generators, distance > _APART**2))
        return replace(self, generators=far).group() if far else None

    def group(self) -> Images | None:
        """Return all products of the exchanges; None if there are too many."""
        (same,) = self.plain.exchanges
        found, waiting = {same.key: same}, [same]
        while waiting:
            here = waiting.pop()
            for g in self.generators:
                there = g.after(here)
                if there.key not in found:
                    found[there.key] = there
                    waiting.append(there)
            if len(found) > _MOST:
                return None
        return replace(self.plain, exchanges=tuple(found.values()))


def _unchanged(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Whether log densities (..., P) differ from others (P,) by no more than rounding."""
    with np.errstate(invalid="ignore"):
        change = np.abs(after - before)
    return np.all(change <= _ROUNDING * np.maximum(np.abs(before), 1.0), axis=-1)


def _extend(
    found: list[Exchange],
    whole: Images,
    mode: np.ndarray,
    precision: np.ndarray,
    generators: Sequence[Exchange],
) -> None:
    """Append the exchanges that lead to further images of a mode (1, D)."""
    values, vectors = np.linalg.eigh(precision)
    root = vectors * np.sqrt(np.maximum(values, 0.0))

    def known(there: Exchange, inverses: Images) -> bool:
        """Whether one of the inverses leads back to the mode, from where an exchange leads."""
        back = inverses.every(whole.of(mode, there))[:, 0]
        return bool((np.linalg.norm((back - mode) @ root, axis=1) < _SAME).any())

    def inverses(exchanges: Sequence[Exchange]) -> Images:
        return replace(whole, exchanges=tuple(t.inverse() for t in exchanges))

    reached, waiting, back = [found[0]], [found[0]], inverses(found[:1])
    while waiting and len(reached) <= _MOST:
        here = waiting.pop()
        for g in generators:
            there = g.after(here)
            if not known(there, back):
                reached.append(there)
                waiting.append(there)
                back = replace(back, exchanges=(*back.exchanges, there.inverse()))
    seen = inverses(found)
    found += [t for t in reached if not known(t, seen)]


def find_symmetries(
    terms: Callable[[np.ndarray], np.ndarray],
    variables: Variables,
    x: np.ndarray,
) -> Symmetries | None:
    """Find exchanges of labels and signs that leave a log density as it is, by trying them at points.

    Tried are: exchanges of two elements along axes of the same length, in any set of variables; exchanges of whole
    variables of the same shape; both together with a change of sign of a scalar, such as a log odds; and changes of
    sign of variables, or of one element along such axes.

    Parameters
    ----------
    terms : callable
        Function of points (P, D) that returns log prior and log likelihood (2, P).
    variables : Variables
    x : array (n, D)
        Points of positive density, at least one.

    Returns
    -------
    Symmetries or None

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.symmetry import find_symmetries
    >>> variables = Variables((Block(np.array([0, 1, 2]), True, "none"),), ())
    >>> def terms(x):
    ...     return np.stack([-0.5 * (x**2).sum(axis=1), np.prod(x, axis=1)])
    >>> found = find_symmetries(terms, variables, np.array([[0.3, -1.0, 2.0]]))
    >>> [g.places.tolist() for g in found.generators if (g.signs > 0).all()]
    [[1, 0, 2], [2, 1, 0], [0, 2, 1]]
    """
    (blocks, sums), n_dim, known = variables, x.shape[1], terms(x)
    size = n_dim + len(sums)
    plain = Images(n_dim, sums, (Exchange(np.arange(size), np.ones(size)),))

    def holds(tries: Sequence[Exchange], rows: slice, which: slice = slice(None)) -> np.ndarray:
        """Whether the sum of some terms does not change, for each exchange."""
        before = known[which, rows].sum(axis=0)
        moved = np.concatenate([plain.of(x[rows], t) for t in tries])
        return _unchanged(before, terms(moved)[which].sum(axis=0).reshape(len(tries), -1))

    prior_holds = partial(holds, rows=slice(0, 1), which=slice(0, 1))
    tried = [*itertools.islice(_candidates(blocks, size, prior_holds), _TRIED)]
    for rows in (slice(0, 1), slice(1, None)):
        if tried and len(x[rows]):
            tried = [*itertools.compress(tried, holds([t.exchange for t in tried], rows))]
    tried = [t for t in tried if not any(other.parts < t.parts for other in tried)]
    if not tried:
        return None
    return Symmetries(plain, tuple(t.exchange for t in tried))


def _candidates(
    blocks: Sequence[Block], size: int, holds: Callable[[Sequence[Exchange]], np.ndarray]
) -> Iterator[_Try]:
    """Yield the exchanges to try, the simplest first."""
    yield from _flips(blocks, size)
    swaps = [*_along_axes(blocks, size), *_of_blocks(blocks, size, holds)]
    yield from swaps
    scalars = [k for k, b in enumerate(blocks) if b.places.size == 1 and b.signed]
    for k, swap in itertools.product(scalars[:4], swaps):
        at = blocks[k].places.item()
        if swap.exchange.places[at] == at:
            signs = swap.exchange.signs.copy()
            signs[at] = -1.0
            yield _Try(swap.exchange._replace(signs=signs), swap.parts | {("sign", k)})


def _along_axes(blocks: Sequence[Block], size: int) -> Iterator[_Try]:
    """Yield exchanges of two elements along axes of one length, in sets of variables."""
    for length, choices in _axes(blocks):
        for chosen in choices:
            for i, j in itertools.combinations(range(length), 2):
                places, order = np.arange(size), np.arange(length)
                order[[i, j]] = j, i
                for k, axes in chosen:
                    moved = blocks[k].places
                    for axis in axes:
                        moved = moved.take(order, axis)
                    places[blocks[k].places] = moved
                parts = frozenset((i, j, *part) for part in chosen)
                yield _Try(Exchange(places, np.ones(size)), parts)


def _axes(
    blocks: Sequence[Block],
) -> Iterator[tuple[int, list[tuple[tuple[int, tuple[int, ...]], ...]]]]:
    """Yield lengths, and sets of (block, axes) of that length: one axis, or all of them."""
    lengths = {n for b in blocks for n in b.places.shape if 2 <= n <= _LONGEST}
    for length in sorted(lengths):
        options: list[list[tuple[int, tuple[int, ...]]]] = []
        for k, b in enumerate(blocks):
            axes = tuple(a for a, n in enumerate(b.places.shape) if n == length)
            ways = {(a,) for a in axes} | ({axes} if axes else set())
            if ways:
                options.append([(k, way) for way in sorted(ways)])
        yield length, list(itertools.islice(_subsets(options), _TRIED // 4))


def _subsets[T](options: Sequence[Sequence[T]]) -> Iterator[tuple[T, ...]]:
    """Yield non-empty sets with at most one of each list of options, the smallest first."""
    for number in range(1, len(options) + 1):
        for chosen in itertools.combinations(options, number):
            yield from itertools.product(*chosen)


def _of_blocks(
    blocks: Sequence[Block], size: int, holds: Callable[[Sequence[Exchange]], np.ndarray]
) -> Iterator[_Try]:
    """Yield exchanges of one or more pairs of variables that have the same shape and prior."""

    def exchange(pairs: Sequence[tuple[int, int]]) -> Exchange:
        places = np.arange(size)
        for i, j in pairs:
            places[blocks[i].places], places[blocks[j].places] = blocks[j].places, blocks[i].places
        return Exchange(places, np.ones(size))

    alike = [
        (i, j)
        for i, j in itertools.combinations(range(len(blocks)), 2)
        if blocks[i].places.shape == blocks[j].places.shape and blocks[i].kind == blocks[j].kind
    ]
    if alike:
        alike = [*itertools.compress(alike, holds([exchange([pair]) for pair in alike]))]
    for pairs in itertools.islice(_matchings(alike), _TRIED // 4):
        yield _Try(exchange(pairs), frozenset(("blocks", *p) for p in pairs))


def _matchings(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield non-empty sets of pairs that share no element, the smallest first."""
    last: list[tuple[tuple[int, int], ...]] = [()]
    while last:
        grown = [
            (*some, pair)
            for some in last
            for pair in pairs
            if (not some or pair > some[-1]) and all(not {*pair} & {*p} for p in some)
        ]
        yield from grown
        last = grown[:_TRIED]


def _flips(blocks: Sequence[Block], size: int) -> Iterator[_Try]:
    """Yield changes of sign of sets of variables, and of one element along axes of one length."""

    def flip(places: Iterable[np.ndarray]) -> Exchange:
        signs = np.ones(size)
        for p in places:
            signs[p] = -1.0
        return Exchange(np.arange(size), signs)

    signed = [k for k, b in enumerate(blocks) if b.signed]
    for chosen in itertools.islice(_subsets([[k] for k in signed]), _TRIED // 4):
        yield _Try(flip(blocks[k].places for k in chosen), frozenset(("sign", k) for k in chosen))
    flat = [b if b.signed else b._replace(places=b.places.ravel()[:0]) for b in blocks]
    for length, choices in _axes(flat):
        for ways in choices:
            if any(len(axes) > 1 for _, axes in ways):
                continue
            for i in range(length):
                yield _Try(
                    flip(blocks[k].places.take(i, axes[0]) for k, axes in ways),
                    frozenset((i, "sign", *way) for way in ways),
                )


class Exchange(NamedTuple):
    """Signed permutation of extended coordinates e: (T e)_i = signs_i e_places_i.

    Attributes
    ----------
    places : array of int (E,)
    signs : array (E,)
    """

    places: np.ndarray
    signs: np.ndarray

    def after(self, first: Exchange) -> Exchange:
        """Return this exchange after another."""
        return Exchange(first.places[self.places], self.signs * first.signs[self.places])

    @property
    def key(self) -> bytes:
        """Bytes that equal exchanges have in common."""
        return self.places.tobytes() + self.signs.tobytes()

    def inverse(self) -> Exchange:
        """Return the exchange that undoes this one."""
        places = np.argsort(self.places)
        return Exchange(places, self.signs[places])


@dataclass(frozen=True, eq=False)
class Images:
    """Exchanges of the coordinates of x (D,) that leave a density as it is.

    They act on the extended coordinates e (E,): those of x, and for each simplex on the log-ratio scale the last
    log-ratio, which is minus the sum of the others. They preserve volumes.

    Parameters
    ----------
    n_dim : int
        Number of dimensions D.
    sums : tuple of array of int
        Positions in x of the log-ratios of each simplex.
    exchanges : tuple of Exchange
        The first one changes nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.mixtures import StudentTMixture
    >>> from amc_pymc.evidence.symmetry import Images
    >>> swap = Exchange(np.array([1, 0]), np.ones(2))
    >>> images = Images(2, (), (swap.after(swap), swap))
    >>> q = StudentTMixture([1.0], [[0.0, 3.0]], [np.diag([1.0, 2.0])], np.inf)
    >>> images.spread(q).means, images.folded(np.array([[3.0, 0.0]]), q)
    (array([[0., 3.],
           [3., 0.]]), array([[0., 3.]]))
    """

    n_dim: int
    sums: tuple[np.ndarray, ...]
    exchanges: tuple[Exchange, ...]

    def extended(self, x: np.ndarray) -> np.ndarray:
        """Return the extended coordinates (P, E) of points (P, D)."""
        return np.column_stack([x, *(-x[:, s].sum(axis=1) for s in self.sums)])

    def of(self, x: np.ndarray, exchange: Exchange) -> np.ndarray:
        """Return the image (P, D) of points (P, D)."""
        places, signs = exchange.places[: self.n_dim], exchange.signs[: self.n_dim]
        return self.extended(x)[:, places] * signs

    def every(self, x: np.ndarray) -> np.ndarray:
        """Return the images (S, P, D) of points (P, D)."""
        places, signs = self._arrays
        return np.swapaxes(self.extended(x)[:, places] * signs, 0, 1)

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Places and signs (S, D) of all exchanges."""
        d = self.n_dim
        return np.stack([t.places[:d] for t in self.exchanges]), np.stack(
            [t.signs[:d] for t in self.exchanges]
        )

    @cached_property
    def matrices(self) -> np.ndarray:
        """Matrices (S, D, D) of the exchanges."""
        return self.every(np.eye(self.n_dim)).transpose(0, 2, 1)

    def nearest(self, x: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """Return the indices (P,) of the exchanges that bring points (P, D) closest to a centre (D,)."""
        e, c = self.extended(x), self.extended(centre[None])[0]
        # Exchanges preserve lengths, so the closest image has the largest product.
        return np.stack([(e[:, t.places] * t.signs) @ c for t in self.exchanges]).argmax(axis=0)

    def moved(self, x: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Return the image of each point (P, D) by its exchange, given by index (P,)."""
        out = np.empty_like(x)
        for k in np.unique(which):
            out[which == k] = self.of(x[which == k], self.exchanges[k])
        return out

    def folded_draws(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the image of each draw (P, D) that is closest to a centre (D,), their mean, and this centre."""
        folded, centre = x, x[-1]
        for _ in range(_FOLDINGS):
            before, folded = folded, self.moved(x, self.nearest(x, centre))
            if np.array_equal(before, folded):
                break
            centre = folded.mean(axis=0)
        return self.moved(x, self.nearest(x, centre)), centre

    def spread(self, mixture: StudentTMixture) -> StudentTMixture:
        """Return the mixture of all images of a mixture, with equal weights."""
        means = self.every(mixture.means)
        roots = self.matrices[:, None] @ mixture.choleskys
        upper = np.linalg.qr(roots.swapaxes(-1, -2), mode="r")
        signs = np.sign(np.diagonal(upper, axis1=-2, axis2=-1))
        factors = np.tril(upper.swapaxes(-1, -2) * signs[..., None, :])
        weights = np.tile(mixture.weights, len(means)) / len(means)
        d = self.n_dim
        return StudentTMixture(
            weights, means.reshape(-1, d), factors.reshape(-1, d, d), mixture.dof
        )

    def shares(self, x: np.ndarray, mode: np.ndarray) -> np.ndarray:
        """Return the shares (S,) of points (P, D) that are closest to each image of a mode (D,)."""
        away = np.linalg.norm(x[None] - self.every(mode[None]), axis=2)
        return np.bincount(away.argmin(axis=0), minlength=len(away)) / len(x)

    def folded(self, x: np.ndarray, mixture: StudentTMixture) -> np.ndarray:
        """Return the image of each point (P, D) at which a mixture is highest."""
        images = self.every(x)
        heights = np.stack([mixture.log_density(y) for y in images])
        return images[heights.argmax(axis=0), np.arange(len(x))]
