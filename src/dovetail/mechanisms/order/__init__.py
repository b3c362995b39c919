"""Which waiting job is next: keys by which queues are sorted, and round robin between tenants."""
