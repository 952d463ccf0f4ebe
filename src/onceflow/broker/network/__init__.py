"""Connections: frames in, responses out, within budgets of memory and time."""
