"""The live plane: a loop around the core, its store, its HTTP API and who may call it."""
