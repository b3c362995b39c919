"""Gavel: time shares on each GPU type, by optimisation (Narayanan et al., OSDI 2020)."""

from dovetail.policies.gavel.policy import gavel as gavel
from dovetail.policies.gavel.policy import pop as pop
