"""Choices that parts of programs are compiled and timed for."""
