"""Tests of Onceflow."""
