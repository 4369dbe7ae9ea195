"""Modules inside AWS's `nki` package that public tools import, implemented on glia."""

from pathlib import Path

from glia.nki.session.session import hide_frames_of

hide_frames_of(Path(__file__).parent)
