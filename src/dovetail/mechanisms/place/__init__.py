"""On which nodes and devices a job runs."""
