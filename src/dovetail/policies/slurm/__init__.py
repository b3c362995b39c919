"""Batch schedulers: Slurm and OpenPBS."""

from dovetail.policies.slurm.policy import openpbs as openpbs
from dovetail.policies.slurm.policy import slurm as slurm
