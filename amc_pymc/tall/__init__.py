"""Samplers for tall data: surrogates of the posterior, and decisions that read few rows."""
