from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from amc_pymc.evidence.adapt import AdaptedMixture
from amc_pymc.evidence.mcmc import Tuning
from amc_pymc.mixtures import StudentTMixture
from amc_pymc.runs import Journal, packed, unpacked


class Foreign(NamedTuple):
    x: float


@dataclass(frozen=True)
class ForeignClass:
    x: float


def mixture():
    """Return a mixture whose weights do not sum to one exactly, so normalising them again would change them."""
    for n in range(3, 100):
        weights = np.arange(1.0, n) / np.arange(1.0, n).sum()
        made = StudentTMixture(weights, np.zeros((n - 1, 1)), np.ones((n - 1, 1, 1)), 5.0)
        if made.weights.sum() != 1.0:
            return made
    raise AssertionError("no such mixture")


def test_what_a_journal_stores_is_restored_to_the_last_bit(tmp_path):
    fitted = AdaptedMixture(mixture(), 0.1, np.float64(12.0), 7, -np.inf, np.empty(0))
    whole = [fitted, (Tuning(0.5, np.eye(2)), None, True), (), [[1, 2.5], np.arange(3)]]
    journal = Journal(tmp_path / "run", {})
    journal.begin([1])
    journal.append({"other": 3, **packed(whole, "part")})
    again = Journal(tmp_path / "run", {})
    again.begin([1])
    found = unpacked(again.load()[0], "part")
    assert isinstance(found[0], AdaptedMixture) and isinstance(found[0].mixture, StudentTMixture)
    for name in ("weights", "means", "choleskys", "dof"):
        np.testing.assert_array_equal(
            getattr(found[0].mixture, name), getattr(fitted.mixture, name)
        )
    x = np.linspace(-3.0, 3.0, 50)[:, None]
    np.testing.assert_array_equal(found[0].mixture.log_density(x), mixture().log_density(x))
    assert found[0][1:5] == fitted[1:5] and found[0].relative_variances.shape == (0,)
    assert found[1][1:] == (None, True) and found[2] == () and type(found[3]) is list
    np.testing.assert_array_equal(found[1][0].scale, np.eye(2))
    np.testing.assert_array_equal(found[3][1], np.arange(3))


def test_nothing_is_none():
    assert packed(None, "a") == {} and unpacked({}, "a") is None


@pytest.mark.parametrize("value", [Foreign(1.0), ForeignClass(1.0)])
def test_only_classes_of_the_package_are_made(value):
    with pytest.raises(ValueError, match="is no class of this package"):
        unpacked(packed(value, "a"), "a")


def test_only_classes_with_fields_are_made():
    with pytest.raises(ValueError, match="has no fields"):
        unpacked({"a.class": "amc_pymc.runs.journal.Journal"}, "a")
