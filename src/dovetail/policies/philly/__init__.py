"""Philly: virtual clusters and locality relaxed over time (Jeon et al., ATC 2019)."""

from dovetail.policies.philly.policy import philly as philly
