"""What a device holds: one job, or two that share it."""
