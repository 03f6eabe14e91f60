"""Flags of doubtful results: what happened, what it means, and what to do."""

from __future__ import annotations

import contextlib
import os
import warnings

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Files whose frames do not count as callers: those of the package, and decorators that are context managers.
_INSIDE = (os.path.dirname(__file__) + os.sep, os.path.splitext(contextlib.__file__)[0])


# Name and what happened, what it means for the estimate, what to do.
_TEXTS = """
# Estimators and their combination.
interrupted: interrupted by the user
    the estimate is of what was complete by then and less precise
    if its error is too large, run again, or resume from the checkpoint if there is one
out_of_time: the time limit max_time={limit:g} s was over
    the estimate is of what was complete by then and less precise
    if its error is too large, raise max_time, or resume from the checkpoint if there is one
arm_failed: draw {draw:,} of an estimator failed ({error})
    the estimate is of what was drawn before and not exactly unbiased
    repair the estimator
arm_constant: all {draws:,} draws of {arm!r} have the same value, from which the estimate is {errors:.1f} standard errors away
    it may not have met its rare values, and its weight is kept small
    draw more, or leave it out
no_spread: no estimator has returned two different values in {draws:,} draws
    an error of zero does not show that the estimate is exact: values that few draws take may be missing
    draw more, unless you know that every draw is exact
all_zero: all weights are zero
    there is no estimate
    check that data and model fit together, or use other estimators
estimators_disagree: the estimators disagree, {arm!r} is {errors:.1f} standard errors from the others
    one of them is biased or has not yet shown the tail of its distribution, and the estimate may be off by more than its error
    leave out estimators that you do not trust, or draw more
few_values: a few {values} carry the sum (Pareto k = {k:.2f} > {limit:g})
    the error is likely larger than stated and the estimate too low
    use estimators with lighter tails, more steps or more draws
budget_too_small: the standard error is {error:.3g} where {target:.3g} was wanted and {budget} was to be spent
    the estimate is less precise than asked for
    raise {argument} if that matters
# Evidence.
pilot_over_budget: max_cost={max_cost:g} is hardly more than the pilot run cost ({spent:.3g}), and {least:.3g} were spent beyond that
    the estimate rests on few draws
    raise max_cost
large_error: the standard error is {error:.3g} nats, of too few draws or far too uneven ones
    the estimate and its error are rough guesses
    spend more, or reparametrise the model
second_opinion: the estimate that weights all draws by inverse variance is {other:.2f}, {errors:.0f} standard errors away
    one of the two has missed a part of the posterior, and the estimate may be off by the difference
    ask for a smaller target_mcse and compare again
uncovered: the fitted reference misses about {share:.0%} of the posterior, which only draws from the prior reach
    the error may be larger than stated and the estimate too low
    compare with arms=['smc'], which starts from the prior
nan: the density was nan at {points:,} points, about {share:.0%} of those where the posterior is
    they count as impossible, and the estimate is too low if they are not
    mend the model where it gives nan
pilot_found_more: the pilot run from the prior found more evidence ({other:.2f})
    part of the posterior is missing and the estimate is too low
    leave arms out, or compare with arms=['smc']
mixture_found_more: importance sampling around all modes found more evidence ({other:.2f})
    part of the posterior is missing, perhaps a narrow peak, and the estimate is too low
    leave arms out: by default they start from the fitted reference
missed_mode: a last search found a mode that the fitted reference does not cover, and with it the log evidence is about {total:.2f}
    the estimate is too low by what the mode holds
    run again with another random_seed, whose pilot run may find the mode
rare_modes: few prior draws lead to modes that hold {share:.0%} of the evidence
    other modes as rarely reached may be unseen and the estimate too low
    run again with other values of random_seed, and distrust this estimate if another one is clearly larger
copies_missed: labels or signs can be exchanged, and the run's chains have not visited {missed} of {copies} copies of the main mode
    the estimate is too low by up to log({copies})
    fix labels and signs in the model (an order or a constraint), and add the logarithm of the number of copies
own_chains_too_short: the standard error is {error:.3g} where target_mcse={target:g} was wanted, most of it from the chains that the run has made (R-hat {r_hat:.5f})
    the estimate is less precise than asked for
    sample longer with pm.sample and pass idata if that matters
own_chains_disagree: the chains that the run has made do not agree (R-hat {r_hat:.2f})
    parts of the posterior have wrong weights, and the estimate may be off by more than its error
    reparametrise the model, or sample longer with pm.sample and pass idata
chains_find_other: own chains and a bridge find another evidence ({other:.2f} +- {error:.2f}), and no fitted mixture is close to the posterior
    one of the two misses a part of it, and the error is raised to cover the difference
    sample long with pm.sample and compare with estimate_evidence(idata=...)
prior_mismatch: the prior density of {variable!r} integrates to {integral:.3g} under its own draws
    its logp and random are not of the same distribution, or logp is not normalised, and the evidence is that of another prior
    correct the pm.CustomDist
unbounded: {share:.0%} of the posterior draws of {variable!r} are as small or large as floating-point numbers get
    the likelihood or the posterior is unbounded, and the evidence not defined
    give {variable!r} a prior that keeps away from there
quadrature_error: integrating {effects} out by quadrature ({rule}) adds {error:.2g} nats
    the estimate is off by as much, which its standard error does not count
    subtract it, or compare with marginalize=None
# Posterior draws of a result.
few_distinct_draws: only {distinct:,} of {draws:,} posterior draws are different
    the evidence is not concerned, but means and intervals of the draws are as rough as of so many draws
    use draws of pm.sample where that matters
# Annealed importance sampling.
few_effective_particles: only {ess:.0f} of {particles:,} particles are effective
    estimate and posterior draws are rough
    use more steps
blocks_missing: {why} after {done} of {blocks} blocks of particles
    the estimate is of these and less precise
    run again if its error is too large
# Evidence from the user's draws.
chains_disagree: the chains of idata do not agree (R-hat {r_hat:.2f})
    they have not found the posterior yet, and the estimate may be off by more than its error
    sample longer, or use estimate_evidence(model), which searches for modes
few_effective_draws: idata has only {ess:.0f} effective draws of a coordinate
    so slow a chain may not have been everywhere, and what it has missed is missing from the evidence
    sample longer or reparametrise the model
smc_particles: the draws of idata are particles of sequential Monte Carlo, which share ancestors
    no error can count that, and the one stated may be several times too small
    use draws of a Markov chain
copies: each draw of idata is there {copies:.1f} times
    the error counts different draws only, but the halves of the draws may share some
    use draws without copies
divergences: {divergent:,} of {draws:,} transitions in idata diverged
    draws avoid a part of the posterior, whose evidence may be missing
    reparametrise the model or raise target_accept
no_overlap: no draw of the fitted Gaussian is possible under the model
    there is no estimate
    reparametrise the model, or use estimate_evidence(model) without idata
little_overlap: the fitted Gaussian and the posterior hardly overlap ({overlap:.1%}, {effective:.0f} effective draws with n_steps={steps})
    the error may be larger than stated
    sample more, raise max_cost or max_time if they are set, or reparametrise the model
halves_disagree: the halves of the draws tell evidences that differ by {apart:.2f} nats
    the chains have not converged, and the estimate is off by about as much
    sample longer
foreign_draws: the draws are not distributed as the model's density says (estimates that lean on either end differ by {gap:.2f} nats)
    the draws are of another model or other data, or have not converged, and the estimate is off by a number of this size
    use the model and data that were sampled, or sample longer
unvisited_mode: a search from prior draws found a mode that the draws have not visited, and with it the log evidence is about {total:.2f}
    the estimate is too low by what the mode holds
    use estimate_evidence(model) without idata, or draws of chains that start in all modes
bridge_too_short: the standard error is {error:.3g} where target_mcse={target:g} was wanted, with n_steps={steps}, the most that {most}
    the estimate is less precise than asked for
    raise max_cost or max_time if they are set, or sample more, if that matters
# Rewards of a policy.
rewards_clipped: a reward of {reward:.6g} from arm {arm} is outside its declared range [{low:.6g}, {high:.6g}]
    it was moved to its end, as will all others be, and the policy is paid something else
    declare a wider range or use RunningRange()
# Comparison of evidences.
not_separated: not separated from {best}
    the log Bayes factor is within two standard errors of zero
    ask for a smaller target_mcse, or report that the models cannot be told apart
rough_error: error above {limit:g} nat
    the delta method is inaccurate, and the tails are likely heavy
    use a better estimate
unknown_error: error unknown
    the standard error is not finite
    give one, or run several chains
single_chain: one chain
    there is no spread between chains to take an error from
    run several chains
few_chains: error from {chains} chains
    the spread of so few chains is a rough error
    run more chains
chains_differ: chains differ by {spread:.1f} nats
    some of them have missed a part of the posterior
    use more particles, or estimate_evidence
same_result: the same result as {first}
    a Bayes factor of one says nothing here
    pass the result of each model
other_data: other data than {first}
    evidences of different data, or of transformed data, cannot be compared
    compare models of the same data
# Likelihood-free inference.
few_draws: {accepted:,} accepted simulations are worth {effective:.0f} independent draws at tolerance {tolerance:.3g}, {unique:,} of them are in the posterior
    means and intervals are as rough as of so many draws
    simulate more or raise the tolerance
few_adjusted_draws: {accepted:,} accepted simulations, adjusted at tolerance {tolerance:.3g}, are worth {effective:.0f} independent draws
    the regression is uncertain
    simulate more, or give it fewer summary statistics
heavy_draw: one draw has {share:.0f} % of all weight
    it was accepted where little was expected
    simulate more, or raise prior_share
tolerance_missed: the tolerance ended at {tolerance:.3g}, above {wanted:.3g} that is asked for
    the posterior is wider than with the smaller tolerance
    simulate more, or raise it
tolerance_shift: the tolerance {tolerance:.3g} may shift posterior means by {overall:.2g} posterior standard deviations, that of {name} by {largest:.2g}, while their Monte Carlo error is {chance:.2g}
    the tolerance is the main error of means, and 'error' in the group 'estimates' includes it
    simulate more, give fewer summary statistics or, unless it is used already, try adjust='auto'
too_wide: at the tolerance {tolerance:.3g} the posterior of {name} is {times:.1f} times as wide as extrapolation or a regression on the summary statistics says
    intervals are too wide
    simulate more, give fewer summary statistics or, unless they are used already, try adjust='auto' or distance_scale='learned'
miscalibrated: errors of posterior means at simulations close to the data are {times:.2g} times the posterior standard deviation of {name}
    the posterior is too narrow or misplaced if the ratio is above one, and too wide below, and 'error' in the group 'estimates' includes it
    simulate more, or give summary statistics that tell more about {name}
uncertain_probabilities: the tolerance {tolerance:.3g} may change the probability of {name} by {size:.2g}
    probabilities of whole numbers, such as indices of models, may change most for simulations that are closer still
    simulate more, lower the tolerance, or give summary statistics that whole numbers can match
not_adjusted: draws are not adjusted
    regression moves all of them to where the prior has no density
    write Potentials as distributions, or pass adjust='none'
simulations_failed: in this run {failures}
    these count as far from the data, and the posterior is wrong if they are not
    mend the simulator, or keep the prior away from there
order_matters: observations along the first axis of simulated data differ by their place ({times:.0f} standard errors)
    exchangeable=True ignores places, and the posterior is that of unordered observations
    give observations of several numbers as rows, an array (observations, columns), or leave exchangeable out unless the simulator only sorts
constant_summaries: summary statistics {left_out} of {summaries} did not vary in the first batch
    they are left out of the distance
    leave them out yourself, or make the first batch larger
not_reproducible: the simulator does not take all its random numbers from the generator that it is given
    it gives other results with the same one, worker processes may repeat each other's noise, and neither a seed nor a checkpoint leads to the same numbers
    use no other random numbers
mode_tolerance_missed: the tolerance ended at {tolerance:.3g}, far above {lowest:.3g}
    the mode is that of a wider posterior
    simulate more
mode_by_learning: summary statistics were learned, because simulations near the mode of the given distance came about as close to the data as draws from the prior
    the mode is that of the posterior given learned summaries
    compare it with sample_abc_tree(adjust='auto'), or leave out statistics that do not depend on the parameters
mode_of_prior: simulations near the mode come about as close to the data as draws from the prior, within a factor of {ratio:.2g} at tolerance {tolerance:.3g}
    the mode is about that of the prior
    give fewer or more informative summary statistics, or use sample_abc_tree(adjust='auto')
mode_biased: the shift of the mode by the tolerance is most of its standard error
    the mode is off by about as much
    simulate more
# Racing steps and product spaces.
no_control_variate: there is no control variate ({reason})
    races will read a large part of the rows, many decisions are close, and errors of probability delta bias the posterior visibly
    use delta=0.01 and batch_size=200, and compare with race='exact'
quadrature_varies: the error of the quadrature over effects varies by up to {error:.2g} nats
    the effects integrated out are far from normal given the rest
    pass marginalize=None, or use NUTS
mode_not_found: the mode of the posterior was not found, {message}
    the control variate is expanded at another point, and races may read more rows than this forecast says
    give initial values (initval=) closer to the posterior, or reparametrise the model
wrong_decisions: {wrong} of {audited} audited decisions were wrong about {what}, more than delta={delta:g} allows
    batch means are not normal
    raise batch_size
slow_chain: {what} still drifts or hardly moves, {share:.0%} of its variance lies between tenths of the chain
    the chain has not converged, and neither its draws nor decision_error show how far off they are
    integrate effects out (marginalize=), write them in the other form (centred or not), tune longer, or use NUTS
poor_expansion: only {acceptance:.2g} of independent moves would be accepted, because the rows are far from their second-order expansion, as where few of them inform each coefficient
    moves are short, and chains need many steps or stay where they are
    integrate effects out (marginalize=), or use NUTS
start_replaced: the chain did not begin at the initial values it was given, which are over five standard deviations from the mode, but near the mode
    chains that begin near one mode agree with each other, and R-hat tells nothing about other modes
    begin within five standard deviations of the mode, or compare with NUTS from your initial values
few_round_trips: the chains came back to {models} fewer than {fewest} times
    the errors of Bayes factors are larger than stated
    draw and tune longer, or give parameters a transform in which their posterior is closer to a Gaussian
never_visited: model {model!r} was never visited
    it has no posterior and no Bayes factor
    tune longer, or leave it out
"""


def _texts(lines: list[str]) -> dict[str, tuple[str, str, str]]:
    said = [line.strip() for line in lines if line and not line.startswith("#")]
    named = [line.split(": ", 1) for line in said[::3]]
    rows = zip(named, said[1::3], said[2::3], strict=True)
    return {name: (happened, meaning, advice) for (name, happened), meaning, advice in rows}


#: Texts by name of the flag: what happened, what it means, what to do. :func:`flag` fills in braces.
FLAGS = _texts(_TEXTS.splitlines())
#: Flags of racing steps: bit k of the statistic ``race_flags`` is that of flag k.
RACING_FLAGS = (
    "no_control_variate", "quadrature_varies", "wrong_decisions", "slow_chain",
    "start_replaced", "poor_expansion",
)  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """A doubt about a result.

    Attributes
    ----------
    name : str
        Key in the table :data:`FLAGS`.
    happened, meaning, advice : str
        What happened, what it means for the estimate, and what to do.

    Examples
    --------
    >>> from amc_pymc.flags import flag
    >>> flag("all_zero").message
    'all weights are zero: there is no estimate, so check that data and model fit together, or use other estimators'
    """

    name: str
    happened: str
    meaning: str
    advice: str

    @property
    def message(self) -> str:
        """All three texts in one sentence."""
        return f"{self.happened}: {self.meaning}, so {self.advice}"


def flag(name: str, /, **values: Any) -> Flag:
    """Return the flag with a given name, its texts filled in with `values`."""
    texts = (text.format(**values).replace(";", ",") for text in FLAGS[name])
    return Flag(name, *texts)


def flag_attributes(flags: Iterable[Flag]) -> dict[str, str]:
    """Return the attributes that store flags: their messages and their names."""
    found = list(flags)
    texts, names = (f.message for f in found), (f.name for f in found)
    return {"flags": "; ".join(texts), "flag_names": "; ".join(names)}


def flag_bits(flags: Iterable[Flag]) -> int:
    """Return the statistic ``race_flags`` of racing steps, the sum of 2**k over different flags."""
    return sum(1 << k for k in {RACING_FLAGS.index(f.name) for f in flags})


def flags_of_bits(bits: Any) -> list[str]:
    """Return the names of the flags that are set in any of the statistics ``race_flags``.

    Examples
    --------
    >>> from amc_pymc.flags import flags_of_bits
    >>> flags_of_bits([[0, 1], [0, 9]])
    ['no_control_variate', 'slow_chain']
    """
    found = int(np.bitwise_or.reduce(np.ravel(np.asarray(bits, np.int64)), initial=0))
    return [name for k, name in enumerate(RACING_FLAGS) if found >> k & 1]


def warn_of(flags: Iterable[Flag], subject: str) -> None:
    """Issue one warning per flag, attributed to the first caller outside of the package."""
    for f in flags:
        warnings.warn(f"{subject}: {f.message}.", UserWarning, skip_file_prefixes=_INSIDE)
