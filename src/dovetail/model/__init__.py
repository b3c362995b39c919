"""The words of the field as values: everything else is written in them."""
