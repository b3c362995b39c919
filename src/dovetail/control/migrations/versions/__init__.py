"""One module for each version: `upgrade` takes the tables there from the version before.

A module never changes once a plane has run it. It names tables and columns as they were then, not as
`dovetail.control.tables` has them now.
"""
