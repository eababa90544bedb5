"""astitch-profile: XLA and astitch side by side on one target.

target -> both compilers -> measured on a GPU, or bounded and projected without one -> Report
       -> terminal, one HTML page, JSON, or a comparison with an earlier Report
"""

from __future__ import annotations

from astitch.profiling.profiler import profile
from astitch.profiling.report import Report

__all__ = ["Report", "profile"]
