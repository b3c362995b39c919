"""Published and classical schedulers, each a small composition of mechanisms."""
