"""Tests of the package clicks."""
