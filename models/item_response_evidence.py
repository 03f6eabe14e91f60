r"""Small test of thirty persons and six items, by the one- and the two-parameter logistic model.

.. math:: y_{pi} \sim \text{Bernoulli}(\text{expit}(a_i (\theta_p - b_i))), \qquad
          \theta_p \sim N(0, 1), \quad b_i \sim N(0, 2^2), \quad \log a_i \sim N(0, 0.5^2)

with one discrimination a for all items, or one each. Abilities are integrated out one at a time by the
trapezoidal rule, which leaves 7 of 37 or 12 of 42 dimensions.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from scipy.special import logsumexp

from models.evidence_problem import EvidenceProblem
from models.item_response import simulate_responses
from models.normal_scores import LOG_2PI, NormalScores, sampled_evidence, scored_problem
from models.student_importance import Reference

PERSONS, ITEMS = 30, 6
DIFFICULTY_SD, DISCRIMINATION_SD = np.float64(2.0), np.float64(0.5)
FROZEN = {False: Reference(-112.044303, 0.00047), True: Reference(-112.213084, 0.0022)}


def answers() -> np.ndarray:
    """Simulate answers (30, 6), 1 if right."""
    return simulate_responses(PERSONS, ITEMS, seed=2).y.reshape(PERSONS, ITEMS).astype(np.int64)


def items(z: np.ndarray, each: bool) -> np.ndarray:
    """Return discriminations and difficulties from normal scores."""
    k = ITEMS if each else 1
    return np.column_stack([np.exp(DISCRIMINATION_SD * z[:, :k]), DIFFICULTY_SD * z[:, k:]])


def log_given_items(theta: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return log probabilities (n,) of answers given discriminations and difficulties, abilities integrated out."""
    ability = np.linspace(-8.0, 8.0, 65)
    log_prior = -0.5 * (np.square(ability) + LOG_2PI) + np.log(ability[1] - ability[0])
    a, b = theta[:, :-ITEMS], theta[:, -ITEMS:]
    values = np.empty(len(theta))
    for part in np.array_split(np.arange(len(theta)), -(-len(theta) // 2_000)):
        logits = a[part, None] * (ability[:, None] - b[part, None])
        wrong = -np.logaddexp(0.0, logits).sum(axis=2) + log_prior
        values[part] = logsumexp(logits @ y.T + wrong[:, :, None], axis=1).sum(axis=1)
    return values


def reference(each: bool, **options: int) -> Reference:
    """Return log Z with one discrimination for all items, or one each."""
    y = answers()
    n_dim = ITEMS + (ITEMS if each else 1)
    scores = NormalScores(n_dim, lambda z: items(z, each), lambda t: log_given_items(t, y))
    return sampled_evidence(scores, **options)


def small_test(each: bool = False) -> EvidenceProblem:
    """Build the problem with all abilities as variables.

    Parameters
    ----------
    each : bool
        Whether each item has its own discrimination (two-parameter model), or all have the same (one-parameter model).
    """
    y = answers()
    k = ITEMS if each else 1

    def variables() -> None:
        a = pm.LogNormal("a", 0.0, DISCRIMINATION_SD, shape=k)
        b = pm.Normal("b", 0.0, DIFFICULTY_SD, shape=ITEMS)
        theta = pm.Normal("theta", 0.0, 1.0, shape=PERSONS)
        pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=y)

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([items(z[:, : k + ITEMS], each), z[:, k + ITEMS :]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        a, b = theta[:, None, :k], theta[:, None, k : k + ITEMS]
        logits = a * (theta[:, k + ITEMS :, None] - b)
        return (y * logits - np.logaddexp(0.0, logits)).sum(axis=(1, 2))

    scores = NormalScores(k + ITEMS + PERSONS, parameters, log_likelihood)
    source = "abilities by quadrature each, the others by quasi-random importance sampling"
    name = f"item_response_{2 if each else 1}pl"
    return scored_problem(name, variables, scores, FROZEN[each], source)
