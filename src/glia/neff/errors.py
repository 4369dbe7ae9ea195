"""Everything that can be wrong with a NEFF file."""

from __future__ import annotations

from glia.base.errors import CompileError


class NeffError(CompileError):
    """A NEFF file cannot be opened; also the parent of every other error about NEFF files.

    Cause: The path does not exist, is a directory or a device, or may not be read.
    Fix: Give the path of a file that `neuronx-cc compile --output` or `Neff.save` wrote.
    Example: glia.load("no_such_file.neff")
    """

    code = "GLIA150"
    message = "cannot read NEFF {path}: {reason}"
    help = "give the path of a file that `neuronx-cc compile --output` wrote"


class NotANeff(NeffError):
    """The file is not a NEFF.

    Cause: The file is shorter than a NEFF header, or the header's sizes do not describe it.
    Fix: Check the path; compile the model again if the file was cut while it was copied.
    Example: glia.load("model.hlo.pb")
    """

    code = "GLIA151"
    message = "not a NEFF file: {reason}"
    help = "check the path; if the file was copied, check that all of it arrived"


class DamagedNeff(NeffError):
    """A part of the NEFF contradicts itself, the header's hash, or the size of the file.

    Cause: The file was changed, cut short, or written by a program with an error.
    Fix: Compile the model again, or copy the file again.
    Example: flip one byte in the middle of a NEFF, then glia.load it
    """

    code = "GLIA152"
    message = "the NEFF is damaged: {part}: {reason}"
    help = "compile the model again, or copy the file again"


class ForeignNeff(NeffError):
    """The NEFF was not compiled by glia.

    Cause: Its instruction streams are in another compiler's encoding, which is not public.
    Fix: Compile the model with glia; `glia inspect` still shows the header and the members.
    Example: glia.load a NEFF compiled by another compiler
    """

    code = "GLIA153"
    message = "the NEFF holds no glia program (built by {build!r})"
    help = "compile the model with glia; `glia inspect` shows what the file does say"


class UnsupportedNeffVersion(NeffError):
    """The NEFF was written by an incompatible version.

    Cause: The layout of the container, the payload or an instruction is another version's.
    Fix: Compile the model again with the installed version.
    Example: glia.load a NEFF whose header says version 9.0
    """

    code = "GLIA154"
    message = "NEFF version mismatch: {what}, supported: {supported} received: {received}"
    help = "compile the model again with the installed version of glia"


class IllegalProgram(NeffError):
    """The program in the NEFF breaks a rule of the machine it is for.

    Cause: The file was changed after it was compiled, or was written by another program.
    Fix: Compile the model again.
    Example: a NEFF in which an instruction's operand was edited to lie outside its tile
    """

    code = "GLIA155"
    message = "the program in the NEFF is not legal on {target}: {reason}"
    help = "compile the model again"
