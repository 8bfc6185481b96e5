"""Faults on purpose: what a plan says, and who carries it out."""
