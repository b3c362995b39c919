"""The values that everything else is written in: jobs, clusters, grants, events, actions, views."""
