"""What can be wrong with a NEFF besides its programs; see also `machine.binary.errors`."""

from __future__ import annotations

from glia.machine.binary.errors import NeffError


class NotANeff(NeffError):
    """The file is not a NEFF.

    Cause: The file is shorter than a NEFF header, or the header's sizes do not describe it.
    Fix: Check the path; compile the model again if the file was cut while it was copied.
    Example: glia.load("model.hlo.pb")
    """

    code = "GLIA151"
    message = "not a NEFF file: {reason}"
    help = "check the path; if the file was copied, check that all of it arrived"


class ForeignNeff(NeffError):
    """The NEFF was not compiled by glia.

    Cause: Its instruction streams are in another compiler's encoding, which is not public.
    Fix: Compile the model with glia; `glia inspect` still shows the header and the members.
    Example: glia.load a NEFF compiled by another compiler
    """

    code = "GLIA153"
    message = "the NEFF holds no glia program (built by {build!r})"
    help = "compile the model with glia; `glia inspect` shows what the file does say"


class IllegalProgram(NeffError):
    """The program in the NEFF breaks a rule of the machine it is for.

    Cause: The file was changed after it was compiled, or was written by another program.
    Fix: Compile the model again.
    Example: a NEFF in which an instruction's operand was edited to lie outside its tile
    """

    code = "GLIA155"
    message = "the program in the NEFF is not legal on {target}: {reason}"
    help = "compile the model again"
