"""Which jobs run in the next round or lease, so that each job gets its time share."""
