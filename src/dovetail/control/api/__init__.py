"""The HTTP API of a plane, /api/v1. Only `app` loads the web framework; ask for it when a plane starts."""
