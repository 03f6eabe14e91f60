"""Figures, tables and statements of the papers that the package implements."""
