"""Dovetail decides which deep-learning work runs on which GPU, when, and for how long."""

__version__ = "0.1.0"
