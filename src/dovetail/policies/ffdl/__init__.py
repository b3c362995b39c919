"""FfDL: gangs placed by biased sampling (Jayaram et al., Middleware 2019)."""

from dovetail.policies.ffdl.policy import ffdl as ffdl
