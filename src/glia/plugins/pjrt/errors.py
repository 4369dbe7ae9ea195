"""Errors of the PJRT plugin: cores that do not exist, what it does not take, and its library."""

from __future__ import annotations

from glia.base.errors import CompileError


class BadCoreSelection(CompileError):
    """The environment asks for NeuronCores in a way that has no meaning, or that do not exist.

    Cause: NEURON_RT_NUM_CORES is not a number, NEURON_RT_VISIBLE_CORES not a range of consecutive
        cores, or an instance of the target has fewer of them.
    Fix: Give a number such as 4, or cores such as 0-3; the message has the number of cores.
    Example: NEURON_RT_VISIBLE_CORES=0,7 JAX_PLATFORMS=neuron python -c "import jax; jax.devices()"
    """

    code = "GLIA701"
    message = "{variable}={value}: {problem}"
    help = "give {hint}"


class SeveralProcesses(CompileError):
    """A process is one of several that share the devices of a program.

    Cause: NEURON_PJRT_PROCESSES_NUM_DEVICES, jax.distributed or torchrun describes more than one
        process; the simulated devices of a process are its own.
    Fix: Run one process, and ask for as many cores in it with NEURON_RT_NUM_CORES.
    Example: NEURON_PJRT_PROCESSES_NUM_DEVICES=8,8 JAX_PLATFORMS=neuron python train.py
    """

    code = "GLIA702"
    message = "{source} describes {count} processes; the simulated devices belong to one"
    help = "run one process with NEURON_RT_NUM_CORES={devices}"


class UnknownClientOption(CompileError):
    """The PJRT client was created with an option that it does not have.

    Cause: jax.distributed, or a framework's registration of the plugin, passes options.
    Fix: Leave the option out; what the devices are comes from the environment.
    Example: jax.config.update("jax_pjrt_client_create_options", "memory_fraction:0.5")
    """

    code = "GLIA703"
    message = "the PJRT client has no option {option!r}"
    help = "leave the option out; NEURON_RT_NUM_CORES and NEURON_CC_FLAGS say what is simulated"


class UnknownElementType(CompileError):
    """An array has an element type of PJRT that the plugin does not know.

    Cause: The type is a token, or newer than the interface's version 0.90.
    Fix: Convert the array to a type that jax.numpy has.
    Example: a buffer of type 23 (TOKEN)
    """

    code = "GLIA704"
    message = "arrays of PJRT's element type {number} have no type of NumPy"
    help = "convert the array to a type of jax.numpy first"


class UnknownHostLayout(CompileError):
    """An array is asked for in a layout that is not a permutation of its dimensions.

    Cause: The caller asks for tiles, or for byte strides.
    Fix: Ask for a dense array, with jax.device_get or numpy.asarray.
    Example: PJRT_Buffer_ToHostBuffer with a layout of byte strides
    """

    code = "GLIA705"
    message = "an array is copied to the host densely, not as {layout}"
    help = "ask for a dense array, with jax.device_get or numpy.asarray"


class UnknownProgramFormat(CompileError):
    """A program reached the plugin in a format that it does not read.

    Cause: Frameworks give StableHLO ("mlir") or HLO ("hlo"); this is neither.
    Fix: Use a release of the framework that gives one of them.
    Example: PJRT_Client_Compile with the format "spirv"
    """

    code = "GLIA706"
    message = "a program in the format {format!r} cannot be read"
    help = "give StableHLO (format mlir) or HLO (format hlo)"


class BadSerializedExecutable(CompileError):
    """A serialized executable cannot be loaded.

    Cause: It is damaged, or another version of glia wrote it.
    Fix: Compile the function again; of a persistent cache, delete its directory.
    Example: jax.experimental.serialize_executable.deserialize_and_load(damaged, ...)
    """

    code = "GLIA707"
    message = "a serialized executable cannot be loaded: {reason}"
    help = "compile the function again; of jax_compilation_cache_dir, delete the directory"


class DeletedBuffer(CompileError):
    """A program is given an array that was donated or deleted before.

    Cause: An earlier call took the array as a donated argument, or its delete() was called.
    Fix: Use what that call returned in its place, or do not donate the array.
    Example: f = jax.jit(lambda x: x + 1, donate_argnums=0); f(x); f(x)
    """

    code = "GLIA708"
    message = "argument {position} of {program} was donated or deleted before"
    help = "use what the earlier call returned in its place, or do not donate it"


class NotPartitioned(CompileError):
    """A program for several devices cannot be divided among them.

    Cause: A sharding does not fit its array, or an operation across devices has no division.
    Fix: Name shardings that divide the dimensions, with in_shardings, out_shardings or shard_map.
    Example: a sharding by an axis of 4 devices of a dimension of 3 elements
    """

    code = "GLIA709"
    message = "the program cannot be divided among the devices: Shardy says {shardy}; XLA: {xla}"
    help = "name shardings that divide the dimensions, or write the division with jax.shard_map"


class BadCpuChoice(CompileError):
    """What the environment says of programs on the host's processor is neither yes nor no.

    Cause: NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU has another value than 0 and 1.
    Fix: Set it to 1 for programs without collectives and kernels to run by XLA on the host.
    Example: NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU=yes JAX_PLATFORMS=neuron python train.py
    """

    code = "GLIA710"
    message = "{variable}={value} is neither 0 nor 1"
    help = "set it to 1 for programs without collectives to run by XLA on the host, or unset it"


class CollectedOnly(CompileError):
    """A program that is only collected, to be compiled later, is to be kept as compiled.

    Cause: NEURON_EXTRACT_GRAPHS_ONLY is set, as by neuron_parallel_compile, and a framework keeps
        compiled programs itself.
    Fix: Leave the framework's own cache off while programs are collected.
    Example: jax.experimental.serialize_executable.serialize under neuron_parallel_compile
    """

    code = "GLIA716"
    message = "{name} is collected and not compiled ({variable}), so it cannot be serialized"
    help = "unset {variable}, or serialize the program in a later run"


class ProcessWithoutPython(CompileError):
    """The plugin's library was loaded by a process in which no Python runs.

    Cause: The functions of the interface are Python's; a program in C++ has none of them.
    Fix: Load the library from a framework in Python.
    Example: dlopen("libneuronpjrt.so") and a call of GetPjrtApi in a program written in C
    """

    code = "GLIA711"
    message = "libneuronpjrt.so was loaded by a process in which no Python runs"
    help = "load it from a framework in Python, such as JAX or torch_xla"


class ProcessWithoutGlia(CompileError):
    """The Python of the process that loaded the plugin's library could not import glia.

    Cause: glia is not installed for that Python, or another version of it is.
    Fix: Install glia there; what Python raised is printed on the standard error before.
    Example: PJRT_NAMES_AND_LIBRARY_PATHS=neuron:libneuronpjrt.so, where glia was removed
    """

    code = "GLIA712"
    message = "the Python that loaded libneuronpjrt.so could not import glia; it printed why"
    help = "install glia, of the version that wrote the library, for that Python"


class NoLibraryForMachine(CompileError):
    """There is no library of the plugin for this machine.

    Cause: The library is written for Linux on x86-64, where torch_xla is.
    Fix: Use JAX, whose plugin needs no library, or a machine with Linux on x86-64.
    Example: libneuronxla.libneuronpjrt_path() on macOS
    """

    code = "GLIA713"
    message = "libneuronpjrt.so is for Linux on x86-64, not for {system} on {processor}"
    help = "with JAX, JAX_PLATFORMS=neuron needs no library"


class UnknownTorchXla(CompileError, ImportError):
    """A release of torch_xla is imported that the plugin is not written for.

    Cause: The plugin answers the calls of torch_xla 2.9; others call in other ways.
    Fix: Install torch 2.9.0 and torch_xla 2.9.0, or use PyTorch's own device `neuron`, which needs
        no torch_xla.
    Example: import torch_xla of release 2.8, with PJRT_DEVICE=NEURON
    """

    code = "GLIA714"
    message = "torch_xla {version} is not {known}, which the plugin is written for"
    help = 'pip install "torch=={known}.0" "torch_xla=={known}.0"; PJRT_DEVICE=CPU is the host'


class NotProvided(CompileError):
    """A framework calls a function of the interface that simulated devices do not have.

    Cause: What was asked for needs memory or transfers that only a device has: arrays of a device
        given to other libraries by DLPack, callbacks to Python, transfers between processes.
    Fix: Take an array to the host first, with np.asarray or jax.device_get.
    Example: torch.from_dlpack(jax.numpy.ones(3)) with JAX_PLATFORMS=neuron
    """

    code = "GLIA715"
    message = "{function} is not provided by the simulated device"
    help = "take arrays to the host first, with np.asarray or jax.device_get"
