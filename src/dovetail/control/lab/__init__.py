"""The Lab: questions about scheduling, answered by the core in processes of their own."""
