"""How many GPUs a tenant is guaranteed, and how many it may borrow."""
