"""Gandiva_fair: tickets, and trade between GPU types (Chaudhary et al., EuroSys 2020)."""

from dovetail.policies.gandiva_fair.policy import gandiva_fair as gandiva_fair
