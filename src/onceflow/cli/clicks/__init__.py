"""Commands of the click count: generate, replay, run, verify, clicks, dead and dashboard."""
