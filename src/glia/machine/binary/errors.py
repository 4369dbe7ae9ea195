"""What can be wrong with the bytes of a machine program, and of the NEFF around them."""

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


class DamagedNeff(NeffError):
    """A part of the NEFF contradicts itself, the header's hash, or the size of the file.

    Cause: The file was changed, cut short, or written by a program with an error.
    Fix: Compile the model again, or copy the file again.
    Example: flip one byte in the middle of a NEFF, then glia.load it
    """

    code = "GLIA152"
    message = "the NEFF is damaged: {part}: {reason}"
    help = "compile the model again, or copy the file again"


class UnsupportedNeffVersion(NeffError):
    """The NEFF was written by an incompatible version.

    Cause: The layout of the container, the payload or an instruction is another version's.
    Fix: Compile the model again with the installed version.
    Example: glia.load a NEFF whose header says version 9.0
    """

    code = "GLIA154"
    message = "NEFF version mismatch: {what}, supported: {supported} received: {received}"
    help = "compile the model again with the installed version of glia"
