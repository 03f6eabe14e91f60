"""A progress bar for tests."""


class Bar:
    """Counts what is reported."""

    def __init__(self):
        self.total, self.calls = 0, 0

    def advance(self, n=1, description=None):
        assert n >= 0
        self.total += n
        self.calls += n > 0
