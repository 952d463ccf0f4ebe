"""Tests of the room clicks."""
