"""Models, data and reference results of the experiments in the papers, one file per experiment."""
