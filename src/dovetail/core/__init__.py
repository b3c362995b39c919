"""Events in, steps out: the only place where the state of a cluster changes."""
