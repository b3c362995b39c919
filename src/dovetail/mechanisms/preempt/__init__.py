"""Which running jobs are preempted for a job that ranks higher."""
