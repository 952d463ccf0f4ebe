"""Tests of the package clicks.ingest."""
