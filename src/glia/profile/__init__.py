"""Where the time of a program goes: numbers, traces and pictures."""

from glia.profile.report import EngineProfile, Profile, profile_program, profile_programs

__all__ = ["EngineProfile", "Profile", "profile_program", "profile_programs"]
