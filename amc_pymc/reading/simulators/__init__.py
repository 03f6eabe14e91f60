"""Models as simulators of data, for likelihood-free methods."""
