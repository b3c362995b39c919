"""Engines run the jobs; the local engine runs them on this machine. An engine decides nothing."""
