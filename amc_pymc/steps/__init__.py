"""Step methods for ``pm.sample`` that read a few rows of tall data per step."""
