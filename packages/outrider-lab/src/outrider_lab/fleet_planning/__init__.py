"""A discrete-event simulator of several replicas behind a router (docs/fleet-planning.md)."""
