"""How many tasks each job gets."""
