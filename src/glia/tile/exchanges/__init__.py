"""Exchanges with other ranks: their order, which travel together, and their instructions."""
