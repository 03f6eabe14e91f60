"""Estimators of the model evidence: a pilot run, bandit arms built from its results, and bridges."""
