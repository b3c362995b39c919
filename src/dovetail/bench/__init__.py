"""Experiments as grids of runs: tables, figures, reports."""
