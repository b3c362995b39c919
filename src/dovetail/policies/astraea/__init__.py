"""ASTRAEA: long-term GPU-time fairness (Ye et al., TPDS 2021)."""

from dovetail.policies.astraea.policy import astraea as astraea
