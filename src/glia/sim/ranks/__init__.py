"""Runs of one program by several ranks, which meet at its collectives."""
