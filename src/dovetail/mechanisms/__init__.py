"""Small parts that schedulers are made of; each answers one question."""
