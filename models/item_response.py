r"""Item response: answers of persons to items, by the two-parameter logistic model.

.. math:: y_{pi} \sim \text{Bernoulli}(\text{expit}(a_i (\theta_p - b_i))), \qquad
          \theta_p \sim N(0, 1), \quad \log a_i \sim N(0, 0.5^2), \quad b_i \sim N(0, 2^2) .

Abilities theta are local to persons, of whom there may be very many; discriminations a and
difficulties b are global. The standard normal prior of the abilities sets their scale, so a_i is
also the standard deviation of the logits of item i, and there is nothing to centre (Birnbaum 1968, in
Lord & Novick, *Statistical Theories of Mental Test Scores*, Addison-Wesley).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pymc as pm

from scipy.special import expit

from amc_pymc.rng import as_generator
from models.grouped import row_data

DIFFICULTY_SD = np.float64(2.0)
_CHUNK = 1_000_000


class Responses(NamedTuple):
    """Answers, one per row, with the parameters of the simulation.

    Attributes
    ----------
    y : array (N,)
        1 if the answer is right.
    person, item : array (N,)
        Person who answered, and item.
    ability : array (P,)
    discrimination, difficulty : array (I,)
    """

    y: np.ndarray
    person: np.ndarray
    item: np.ndarray
    ability: np.ndarray
    discrimination: np.ndarray
    difficulty: np.ndarray


def simulate_responses(
    n_persons: int = 1_000, n_items: int = 40, *, missing: float = 0.0, seed: int = 1
) -> Responses:
    """Simulate answers of all persons to all items, except for a share that is missing at random."""
    rng = as_generator(seed)
    ability = rng.standard_normal(n_persons)
    discrimination = np.exp(0.4 * rng.standard_normal(n_items))
    difficulty = 1.2 * rng.standard_normal(n_items)
    person = np.repeat(np.arange(n_persons, dtype=np.int32), n_items)
    item = np.tile(np.arange(n_items, dtype=np.int32), n_persons)
    if missing:
        kept = rng.random(person.size) >= missing
        person, item = person[kept], item[kept]
    y = np.empty(person.size, dtype=np.int8)
    for begin in range(0, y.size, _CHUNK):
        p, i = person[begin : begin + _CHUNK], item[begin : begin + _CHUNK]
        chance = expit(discrimination[i] * (ability[p] - difficulty[i]))
        y[begin : begin + _CHUNK] = rng.random(p.size) < chance
    return Responses(y, person, item, ability, discrimination, difficulty)


def item_response_model(data: Responses, *, batch_size: int | None = None) -> pm.Model:
    """Build the two-parameter logistic model: ``ability``, ``discrimination`` and ``difficulty``.

    Parameters
    ----------
    data : Responses
    batch_size : int or None
        Answers per minibatch, for :func:`pymc.fit`; all by default.
    """
    n_persons, n_items = data.ability.size, data.difficulty.size
    with pm.Model(coords={"person": range(n_persons), "item": range(n_items)}) as model:
        rows, total = row_data(batch_size, y=data.y, person_index=data.person, item_index=data.item)
        ability = pm.Normal("ability", 0.0, 1.0, dims="person")
        discrimination = pm.LogNormal("discrimination", 0.0, 0.5, dims="item")
        difficulty = pm.Normal("difficulty", 0.0, DIFFICULTY_SD, dims="item")
        item = rows["item_index"]
        logit = discrimination[item] * (ability[rows["person_index"]] - difficulty[item])
        pm.Bernoulli("obs", logit_p=logit, observed=rows["y"], total_size=total)
    return model
