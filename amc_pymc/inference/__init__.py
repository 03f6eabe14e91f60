"""Public functions of the package, each in a module of the same name."""
