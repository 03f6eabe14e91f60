"""Functions that users call on a model, one in each module of its name."""
