"""The Python side of a plane: a client, an executor for functions, and what a training script imports."""
