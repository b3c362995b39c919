"""Themis: finish-time fairness by auction (Mahajan et al., NSDI 2020)."""

from dovetail.policies.themis.policy import themis as themis
