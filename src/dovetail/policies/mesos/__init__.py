"""Mesos: resource offers to frameworks (Hindman et al., NSDI 2011)."""

from dovetail.policies.mesos.policy import mesos_drf as mesos_drf
