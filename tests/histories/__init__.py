"""Histories of clients under faults, and a checker for what a log must never show."""
