"""The parts that policies are made of, in packages by what they decide."""
