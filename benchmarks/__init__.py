"""Figures that Dovetail promises, each beside its limit.

CPU time only, and as a ratio to a plain Python loop measured in the same process right before and after:
machines are shared and differ, ratios travel.
"""
