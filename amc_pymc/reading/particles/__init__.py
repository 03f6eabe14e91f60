"""Log densities and draws of a model at many points, for evidence."""
