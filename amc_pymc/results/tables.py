"""Variables of all results, by group: name, dims, dtype, unit, scale, meaning.

Variables of the user's model are not listed. Counts of racing steps are sums over the transitions of a draw. Some
variables are in a result only if an option asks for them.
"""

from __future__ import annotations

from dataclasses import replace

from amc_pymc.flags import RACING_FLAGS
from amc_pymc.results.variables import Table, Variable, as_table

#: Statistics of all races.
RACE_STATS = as_table("""
race_rows       | | float | rows   | | rows read by races, proposals and control variates, which may exceed N
race_delta      | | float |        | | promised error probability of a decision, 0 for exact decisions
race_audited    | | float |        | | decisions re-made on all rows
race_wrong      | | float |        | | audited decisions that all rows would have made otherwise
race_audit_rows | | float | rows   | | rows read by audits
race_recentred  | | float |        | | times the control variate was moved in this chain so far
""")
#: Statistics of all racing steps beside those of races.
STEP_STATS: Table = {
    "race_flags": Variable(
        "race_flags", (), "float", "", "",
        "flags: the sum of " + ", ".join(f"{2**k} ({name})" for k, name in enumerate(RACING_FLAGS)),
    )
} | as_table("""
race_exact      | | float | | | 1 if no decision of the draw can be wrong, else 0
race_drift      | | float | | | largest share of a coordinate's variance between tenths of the draws at the last draw, of tuning's second half before, 0 if unknown
""")  # fmt: skip
#: Further statistics of Metropolis steps.
METROPOLIS_STATS = as_table("""
accept          | | float |      | | estimated acceptance probability, mean over the draw's transitions
accepted        | | float |      | | share of the draw's transitions that were accepted
scaling         | | float |      | | scale of the proposal most often used
race_quadrature | | float | nats | | largest change of an audited log ratio by twice the nodes of the quadrature so far
""")
#: Further statistics of Gibbs steps.
GIBBS_STATS = as_table("""
race_moved      | | float | | | share of the elements drawn that changed
race_arms_left  | | float | | | states still racing after the first round, mean over races
""")

#: Product space: statistics of the chains, and the group ``product_space``.
SPACE_STATS = {n: replace(v, dims=("chain", "draw", "step")) for n, v in RACE_STATS.items()}
SPACE_STATS |= as_table("""
accept          | chain draw | float |      | | estimated acceptance probability of the parameters
row_evaluations | chain draw | float | rows | | evaluations of the log likelihood of a row
race_arms_left  | chain draw | float |      | | models still racing after the first round
""")
SPACE = as_table("""
prob                 | model         | float |        |     | posterior probability of the model
prob_mcse            | model         | float |        |     | its Monte Carlo standard error
log_bf               | model against | float | nats   | log | log Bayes factor of the model against another
log_bf_mcse          | model against | float | nats   |     | its Monte Carlo standard error
visits               | chain model   | int   | draws  |     | draws of the model
round_trips          | chain model   | int   |        |     | times the chain left the model and came back
log_weight           | chain model   | float | nats   | log | weight of the model in the chain
prior_prob           | model         | float |        |     | prior probability of the model
laplace_log_evidence | model         | float | nats   | log | evidence by the Laplace approximation
""")

#: Group ``evidence`` of all functions that estimate one.
EVIDENCE = as_table("""
log_evidence         | | float | nats        | log | estimate of the log evidence
log_evidence_mcse    | | float | nats        |     | its Monte Carlo standard error
log_evidence_lower   | | float | nats        | log | lower end of a 95 % interval
log_evidence_upper   | | float | nats        | log | upper end of a 95 % interval
log_evidence_iv      | | float | nats        | log | second opinion, all draws weighted by inverse variance
log_evidence_iv_mcse | | float | nats        |     | standard error of the second opinion
ess                  | | float | draws       |     | draws with relative variance one that would give the same error
pareto_k             | | float |             |     | Pareto shape of the largest weights, nan if unknown
n_steps              | | int   |             |     | annealing steps of the bridge
overlap              | | float |             |     | overlap of Gaussian and posterior, 1 if they are equal
bridge_ess           | | float | draws       |     | effective draws behind the bridge
r_hat                | | float |             |     | R-hat of the worst unconstrained coordinate
ess_bulk             | | float | draws       |     | effective draws of the worst unconstrained coordinate
n_divergent          | | int   |             |     | divergent transitions
quadrature_error     | | float | nats        |     | error of the log evidence from the quadrature over effects
n_likelihood         | | int   | evaluations |     | points evaluated, with and without gradients
n_gradient           | | int   | evaluations |     | points evaluated with gradients
n_nan                | | int   | evaluations |     | points with density nan
compile_seconds      | | float | s           |     | time to compile the model
cpu_seconds          | | float | s           |     | CPU time after compilation
""")
EVALUATIONS = as_table("""
n_likelihood | stage | int | evaluations | | points evaluated, with and without gradients
n_gradient   | stage | int | evaluations | | points evaluated with gradients
n_nan        | stage | int | evaluations | | points with density nan
""")
#: Statistics of posterior draws, and columns of weighted ones.
DRAW_STATS = as_table("""
log_prior          | chain draw | float | nats | log | log prior density
log_likelihood_sum | chain draw | float | nats | log | sum of the log likelihoods of all rows
lp                 | chain draw | float | nats | log | log posterior density, not normalised
particle           | chain draw | int   |      |     | index of the particle that was drawn
distance           | chain draw | float |      |     | distance between simulation and data
round              | chain draw | int   |      |     | round of the simulation
simulation         | chain draw | int   |      |     | index of the simulation
""")
WEIGHTED = as_table("""
log_weight         | chain draw | float | nats | log | weight of the particle or simulation
distance           | chain draw | float |      |     | distance between simulation and data
round              | chain draw | int   |      |     | round of the simulation
""")
ANNEALING = as_table("""
beta            | temperature      | float |           |     | inverse temperature
log_weight_path | path temperature | float | nats      | log | weight so far, of one of the first particles
log_mean_weight | temperature      | float | nats      | log | mean weight so far
ess             | temperature      | float |           |     | effective share of the particles
accept          | temperature      | float |           |     | acceptance rate of the kernel, nan at the last temperature
""")

#: Groups of a combination of estimators. On the log scale, values are logarithms.
ESTIMATE = as_table("""
mean          | weights | float |      |     | estimate
mcse          | weights | float |      |     | its Monte Carlo standard error
log_mean      | weights | float | nats | log | logarithm of the estimate
log_mean_mcse | weights | float | nats |     | its standard error
""")
ARMS = as_table("""
draws             | arm | int   | draws |     | draws
mean              | arm | float |       |     | mean of the arm's values
mcse              | arm | float |       |     | its standard error
log_mean          | arm | float | nats  | log | logarithm of the mean
log_mean_mcse     | arm | float | nats  |     | its standard error
log_evidence      | arm | float | nats  | log | estimate of the log evidence
log_evidence_mcse | arm | float | nats  |     | its standard error
log_evidence_half | arm half | float | nats | log | estimate from half of the draws
n_steps           | arm | int   |       |     | annealing steps of the bridge
overlap           | arm | float |       |     | overlap of Gaussian and posterior, 1 if they are equal
relative_variance | arm | float |       |     | variance of a value over the squared mean
sd                | arm | float |       |     | standard deviation of a value, on the log scale of its logarithm
cost_per_draw     | arm | float | cost  |     | mean cost of a draw
cost              | arm | float | cost  |     | cost of all draws
weight            | arm | float |       |     | share of the weights of the predictable estimate
z_score           | arm | float |       |     | difference from the estimate of the other arms, in errors
pareto_k          | arm | float |       |     | Pareto shape of the largest values, nan for fewer than 25
""")
ROUNDS = as_table("""
draws                 | round arm     | int   | draws |     | draws of the arm in the round
arm_weight            | round arm     | float |       |     | weight of the arm within the round
round_weight          | round         | float |       |     | weight of the round, not normalised
cost                  | round         | float | cost  |     | cost of the round
running_mean          | round weights | float |       |     | estimate after the round
running_mcse          | round weights | float |       |     | its standard error
running_log_mean      | round weights | float | nats  | log | logarithm of the estimate after the round
running_log_mean_mcse | round weights | float | nats  |     | its standard error
""")
PULLS = as_table("""
arm          | pull | int   |      | | index of the arm, its name is in the attribute ``names``
round        | pull | int   |      | | round
value        | pull | float |      | | value, on the scale of the arms
cost         | pull | float | cost | | cost
""")

#: Groups of likelihood-free samplers.
ABC = as_table("""
tolerance        | round               | float |             | | tolerance of the round
boxes            | round               | int   |             | | boxes of the proposal
simulations      | round               | int   | simulations | | simulations of the round
acceptance       | round               | float |             | | share accepted, at the tolerance of the round
final_acceptance | round               | float |             | | share accepted at the final tolerance
ess              | round               | float | draws       | | effective draws of the round at the final tolerance
ess_so_far       | round               | float | draws       | | effective draws so far, of all rounds up to this one
gain             | round               | float |             | | gain of the proposal over the prior
failed           | round               | int   | simulations | | simulations that failed
seconds          | round               | float | s           | | time of the simulations, nan if they come from a checkpoint
final_tolerance  |                     | float |             | | tolerance of the posterior
effective_draws  |                     | float | draws       | | effective draws of the posterior
accepted         |                     | int   | simulations | | simulations accepted at the final tolerance
n_simulations    |                     | int   | simulations | | all simulations
n_failed         |                     | int   | simulations | | all simulations that failed
largest_weight   |                     | float |             | | share of the largest weight
pareto_k         |                     | float |             | | Pareto shape of the largest weights, nan for fewer than 25
prior_acceptance |                     | float |             | | acceptance probability of draws from the prior
summary_scale    | summary             | float |             | | spread of the summary statistic in the first batch
""")
STEP_POSTERIOR = as_table("""
lower    | box coordinate | float | | | lower corner of the box in the unit cube
upper    | box coordinate | float | | | upper corner of the box in the unit cube
mass     | box            | float | | | posterior mass of the box
accepted | box            | int   | | | accepted simulations in the box
""")
PROBABILITIES = as_table("""
probability | statistic event | float | | | probability of a whole number: mean, mcse, tolerance_error (change by the tolerance), error (total)
""")
ABC_SIMULATIONS = as_table("""
distance   | simulation            | float |      |     | distance between simulation and data
log_weight | simulation            | float | nats | log | prior density over that of the proposal
round      | simulation            | int   |      |     | round of the simulation
failure    | simulation            | text  |      |     | kind of failure, empty if there was none
u          | simulation coordinate | float |      |     | position in the unit cube
summaries  | simulation summary    | float |      |     | summary statistics
""")

#: Batches of a search by MAP-Tree.
MAP_ROUNDS = as_table("""
tolerance   | round            | float |             |     | tolerance of the batch
boxes       | round            | int   |             |     | boxes
simulations | round            | int   | simulations |     | simulations of the batch
incumbent   | round coordinate | float |             |     | centre of the best box in the unit cube
""")

_COMBINED = {"estimate": ESTIMATE, "arms": ARMS, "rounds": ROUNDS, "pulls": PULLS}
_EVIDENCE = {"evidence": EVIDENCE, "evaluations": EVALUATIONS}
_DRAWS = {"sample_stats": DRAW_STATS, "weighted_posterior": WEIGHTED}
#: Groups by function, for the documentation.
RESULTS: dict[str, dict[str, Table]] = {
    "RacingMetropolis": {"sample_stats": RACE_STATS | STEP_STATS | METROPOLIS_STATS},
    "RacingGibbs": {"sample_stats": RACE_STATS | STEP_STATS | GIBBS_STATS},
    "sample_product_space": {"product_space": SPACE, "sample_stats": SPACE_STATS},
    "estimate_evidence": _EVIDENCE | _COMBINED | {"sample_stats": DRAW_STATS},
    "sample_ais": _EVIDENCE | {"annealing": ANNEALING} | _DRAWS,
    "combine_estimators": _COMBINED,
    "sample_abc_tree": {"abc": ABC, "step_posterior": STEP_POSTERIOR}
    | {"simulations": ABC_SIMULATIONS, "probabilities": PROBABILITIES}
    | _DRAWS,
    "find_MAP_tree": {"rounds": MAP_ROUNDS},
}
