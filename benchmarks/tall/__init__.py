"""Many rows: how fast, how accurate."""
