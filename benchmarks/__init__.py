"""Benchmarks: `python -m benchmarks.NAME`; `python -m benchmarks` lists the names.

The commands stand here flat, because pages and scripts call them by these names.  What they are made of stands beside
them; the models stand in workloads/ and modern_programs/.  An error inside astitch ends a benchmark: what XLA computed
in its place must not be timed as ours.
"""

import os

os.environ.setdefault("ASTITCH_FAULTS", "raise")
