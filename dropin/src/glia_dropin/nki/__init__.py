"""What public tools use of the inside of AWS's `nki` packages, on glia's machinery."""

from pathlib import Path

from glia.nki.session.session import hide_frames_of

hide_frames_of(Path(__file__).parent)
