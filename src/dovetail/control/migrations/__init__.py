"""Changes of the tables, in order; `store.migrate` applies those that are missing."""
