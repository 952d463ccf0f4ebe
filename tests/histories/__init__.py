"""Histories of clients under faults, and a checker that finds what a log must never show."""
