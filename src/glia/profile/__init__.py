"""Profiles of simulated programs: numbers, traces and pictures of where time goes."""

from glia.profile.report import EngineProfile, Profile, profile_program, profile_programs

__all__ = ["EngineProfile", "Profile", "profile_program", "profile_programs"]
