"""From a stitch op to the best plan for it: candidates, checks, splits, measurements, the program."""
