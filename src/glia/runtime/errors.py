"""Errors of loading a model, of its inputs and of its execution."""

from __future__ import annotations

from typing import ClassVar

from glia.base.errors import CompileError
from glia.runtime.status import Status


class WrongInputs(CompileError):
    """The inputs given are not the inputs the model takes.

    Cause: An input is missing, a name is not one of the model's, or there are too many arrays.
    Fix: Give every input once; `glia inspect F.neff` and `model.inputs` list them.
    Example: model(x) for a model that takes x and y
    """

    status: ClassVar[Status] = Status.NRT_INVALID
    code = "GLIA501"
    message = "NRT_INVALID(2): {problem}; the model takes {expected}"
    help = "give every input of the model once, by name or in order"


class WrongShape(CompileError):
    """An input array has another shape than the model was compiled for.

    Cause: Programs are compiled for fixed shapes; a transposed or otherwise batched array does not
        fit.
    Fix: Reshape or pad the array, or compile the model for that shape.
    Example: model(numpy.zeros((3, 2))) for a model compiled for [2,3]
    """

    status: ClassVar[Status] = Status.NRT_INVALID
    code = "GLIA502"
    message = "NRT_INVALID(2): input {name!r} has shape {given}, the model takes {expected}"
    help = "reshape or pad the array, or compile the model for that shape"


class WrongDType(CompileError):
    """An input array has another dtype than the model was compiled for.

    Cause: NumPy makes float64 and int64 arrays by default; models mostly take float32 and int32.
    Fix: Convert the array with `.astype`.
    Example: model(numpy.zeros((2, 3))) for a model compiled for f32[2,3]
    """

    status: ClassVar[Status] = Status.NRT_INVALID
    code = "GLIA503"
    message = "NRT_INVALID(2): input {name!r} has dtype {given}, the model takes {expected}"
    help = "convert the array: numpy.asarray(x).astype({expected_numpy})"


class UnusableInput(CompileError):
    """An array cannot be read, or written to, where it lies.

    Cause: It lies on another device, has a dtype that NumPy does not know or needs gradients; or it
        is donated and cannot be updated in place, since it is read-only or not row-major.
    Fix: Give an array of the CPU without gradients, and donate arrays that may be written to.
    Example: model(torch.zeros(3, requires_grad=True))
    """

    status: ClassVar[Status] = Status.NRT_INVALID
    code = "GLIA519"
    message = "NRT_INVALID(2): input {name!r} cannot be used: {reason}"
    help = "give a plain array of the CPU; donate only arrays that may be written to"


class UnknownDevice(CompileError):
    """`glia.load` was asked for a device that does not exist.

    Cause: The name, or GLIA_DEVICE in the environment, is none of the simulated devices of this
        installation.
    Fix: Leave `device` out, or name one of the devices in the message.
    Example: glia.load("model.neff", device="cuda")
    """

    status: ClassVar[Status] = Status.NRT_INVALID
    code = "GLIA504"
    message = "there is no device {device!r}; devices are {known}"
    help = "leave `device` out, or name one of the devices"


class DeviceMemoryExhausted(CompileError):
    """The host cannot hold the memory of the simulated device.

    Cause: The model's weights, inputs, outputs and intermediate tensors need more than is free.
    Fix: Free memory, use a larger machine, or compile a smaller model or batch.
    Example: glia.load a model with 200 GB of weights on a laptop, then call it
    """

    status: ClassVar[Status] = Status.NRT_RESOURCE
    code = "GLIA505"
    message = (
        "NRT_RESOURCE(4): the model needs {bytes} bytes of device memory; the host has less free"
    )
    help = "free memory, use a larger machine, or compile a smaller model or batch"


class ProgramFault(CompileError):
    """The program did something the machine cannot do, such as an access outside its tensor.

    Cause: An index in the input data is out of range, or the program in the NEFF is wrong.
    Fix: Check the index inputs first; the message names the instruction and its source line, and of
    a race the missing wait or barrier.
    Example: an indirect load whose index input holds a row number beyond the table
    """

    status: ClassVar[Status] = Status.NRT_EXEC_COMPLETED_WITH_ERR
    code = "GLIA507"
    message = "NRT_EXEC_COMPLETED_WITH_ERR(1004): {reason}"
    help = "apply the fix above if there is one; otherwise check the inputs that hold indices"


class UndocumentedResult(CompileError):
    """The program asks for something whose result no public document tells.

    Cause: The values in the tensors, or a damaged program, bring an instruction to a case that the
        documentation leaves open; the simulator does not guess.
    Fix: Change the inputs or the operation so that the case does not occur; the message names it.
    Example: a kernel whose scatter with unique_indices names a row twice
    """

    status: ClassVar[Status] = Status.NRT_EXEC_COMPLETED_WITH_ERR
    code = "GLIA517"
    message = "NRT_EXEC_COMPLETED_WITH_ERR(1004): the hardware's result is not documented: {reason}"
    help = "change the inputs or the operation so that the case does not occur"


class NotEnoughCores(CompileError):
    """The model is split over more cores than the device has.

    Cause: It holds a program for each of more physical cores than a chip of its target has.
    Fix: Compile it for fewer cores, or for a target with more of them on a chip.
    Example: glia.load a NEFF with three programs for trn1, whose chip has two cores
    """

    status: ClassVar[Status] = Status.NRT_LOAD_NOT_ENOUGH_NC
    code = "GLIA506"
    message = "NRT_LOAD_NOT_ENOUGH_NC(9): the model needs {needed} cores, {target} has {has}"
    help = "compile for fewer cores, or for a target with more cores on a chip"


class WrongRanks(CompileError):
    """A model is loaded or run with another number of ranks than it was compiled for.

    Cause: A program of several ranks names them in its collectives, so that it fits one number.
    Fix: Give that number to `glia.load`, `run_ranks` and `glia run --ranks`, or compile the model
        for another with `--replicas` and `--partitions`.
    Example: glia.load of a NEFF for 8 ranks with ranks=4
    """

    status: ClassVar[Status] = Status.NRT_INVALID
    code = "GLIA528"
    message = "NRT_INVALID(2): the model is for {needed} ranks, not {given}"
    help = "{cure}"


class BadArrayFile(CompileError):
    """A .npy or .npz file cannot be read.

    Cause: It is missing, not a NumPy file, truncated, holds Python objects, or lacks an array.
    Fix: Write it with numpy.save or numpy.savez from plain arrays, under the tensors' names.
    Example: glia run model.neff --input x=model.neff
    """

    code = "GLIA205"
    message = "cannot use {path}: {reason}"
    help = "write it with numpy.save or numpy.savez from plain arrays, under the tensors' names"


class BadSharding(CompileError):
    """Arrays cannot be divided among ranks, or put together, as was asked for.

    Cause: The mesh has another number of ranks than the model, a sharding names an axis that the
        mesh has not, or a dimension does not divide by the sizes of its axes.
    Fix: Give a mesh whose sizes multiply to the model's ranks, and shardings by its axes.
    Example: glia run sharded.neff --mesh data=3 for a model of 8 ranks
    """

    status: ClassVar[Status] = Status.NRT_INVALID
    code = "GLIA536"
    message = "NRT_INVALID(2): {problem}"
    help = "give --mesh with the model's ranks, and --shard NAME=AXIS,- with an entry a dimension"
