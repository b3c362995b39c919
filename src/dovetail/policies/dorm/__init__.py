"""Dorm: partitions of the cluster, resized by a mixed-integer program (Sun et al., SMARTCOMP 2017)."""

from dovetail.policies.dorm.policy import dorm as dorm
