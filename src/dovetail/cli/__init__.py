"""The command line: one file for each verb; it parses, calls and prints."""
