"""Tests mirror src; each room has a folder of its name."""
