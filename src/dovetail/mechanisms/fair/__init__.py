"""How large the fair share of each tenant or job is."""
