"""Tiresias: least attained service, in queues (Gu et al., NSDI 2019)."""

from dovetail.policies.tiresias.policy import tiresias_g as tiresias_g
from dovetail.policies.tiresias.policy import tiresias_l as tiresias_l
