"""`onceflow doctor`: check what the other commands need, each finding with its remedy."""
