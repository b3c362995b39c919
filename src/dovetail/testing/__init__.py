"""Builders and suites for tests, ours and those of plug-ins."""
