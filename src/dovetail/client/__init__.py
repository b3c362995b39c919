"""The Python SDK: a client, an executor for functions, and `job` for training scripts."""
