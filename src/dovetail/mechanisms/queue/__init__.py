"""How far down the queue a decision looks: strict order, skipping, backfill."""
