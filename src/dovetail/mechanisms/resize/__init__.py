"""Growing and shrinking the jobs that run."""
