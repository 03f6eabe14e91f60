"""Inference without a likelihood: how close at the same number of simulations."""
