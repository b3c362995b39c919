"""The simulated world: jobs at their true speeds, failures, and what is measured of a run."""
