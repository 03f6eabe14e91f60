"""Marginal log-likelihoods of groups, with local effects integrated out."""
