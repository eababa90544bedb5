"""Benchmarks: `python -m benchmarks.NAME`.  An error inside astitch ends them: what XLA computed in its place is not to
be timed as ours."""

import os

os.environ.setdefault("ASTITCH_FAULTS", "raise")
