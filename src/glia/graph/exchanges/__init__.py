"""Collectives of a whole graph: how ranks are numbered, and which exchanges there are."""
