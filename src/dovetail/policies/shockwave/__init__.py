"""Shockwave: fairness for jobs that change their batch size (Zheng et al., NSDI 2023)."""

from dovetail.policies.shockwave.policy import shockwave as shockwave
