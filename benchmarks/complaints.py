"""What users of JAX reported as slow on a GPU, by jax.jit, astitch.jit and XLA's hook (astitch.enabled()).

Takes the options of benchmarks.modern: it measures on the GPU that is here, or with --ahead compiles for an H100 that
is not here.  Rows are named by issue and program; modern_programs/complaints.py has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import modern
from benchmarks.modern_programs import complaints

COMPLAINTS = modern.Suite(
    "benchmarks.complaints", __doc__, tuple(complaints.MAKE), complaints.IN_ORDER, timeout_s=300.0
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    print(f"wait for loops of more kinds: {', '.join(complaints.WAIT_FOR_LOOPS)}", flush=True)
    modern.main(arguments, COMPLAINTS)


if __name__ == "__main__":
    main()
