"""The search: candidates, builders, timers, selection, the command line."""
