"""The time shares, or the order of jobs on each machine, that optimise an objective."""
