"""What runs the jobs: this machine by default. An engine translates; it decides nothing."""
