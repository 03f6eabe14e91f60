"""Model evidence: how close, how soon, how honest."""
