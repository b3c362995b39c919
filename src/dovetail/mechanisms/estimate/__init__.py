"""How fast a job would run on GPUs of a type that it has not run on yet."""
