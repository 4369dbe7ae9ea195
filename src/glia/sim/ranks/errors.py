"""Errors of ranks that do not meet."""

from __future__ import annotations

from glia.base.errors import CompileError


class RanksDisagree(CompileError):
    """Ranks wait for each other at different collectives, or at one with different tensors.

    Cause: Ranks take different ways through the program, as a loop or branch depends on data that
        differs between them, or run programs in which the order, groups, shapes or dtypes of
        collectives differ.
    Fix: Give every rank of a group the same collectives in the same order; decide about loops and
        branches around them by data that all have, such as the result of an all-reduce.
    Example: a conditional on the rank's number with an all-reduce in one branch and an all-gather
        in the other
    """

    code = "GLIA526"
    message = (
        "rank {rank} waits in {call}{place}, rank {other} in {other_call}{other_place}: they differ"
        " in {what}"
    )
    help = "give every rank of a group the same collectives in the same order"


class RankMissing(CompileError):
    """A rank has ended, while another still waits for it at a collective.

    Cause: Ranks take different ways through the program, as a loop or branch depends on data that
        differs between them.
    Fix: Decide about collectives by data that all ranks of a group have, such as the result of an
        all-reduce.
    Example: a conditional on the rank's number with an all-reduce in one branch only
    """

    code = "GLIA527"
    message = "rank {rank} waits in {call}{place} for rank {other}, which never arrives: {why}"
    help = "give every rank of a group the same collectives in the same order"


class RankLost(CompileError):
    """The process of a rank ended in the middle of a run, which ended all ranks.

    Cause: The process was killed, for example by the system when memory ran out, or crashed.
    Fix: Run again with fewer ranks on the machine or more memory; `dmesg` says whether the system
        killed it.
    Example: `kill -9` of the process of a rank during `model.run_ranks`
    """

    code = "GLIA531"
    message = "rank {ranks} of {count} was lost: {how}; the other ranks were ended"
    help = "run again; if memory ran out, run fewer ranks on one machine"


class OneProcessOnly(CompileError):
    """Ranks are to run in processes of their own, in a way that needs them in one.

    Cause: Device adversarial orders the accesses of all ranks in one machine, and the cores of a
        rank that has several share their memory.
    Fix: Run in threads (`glia run --threads`, `glia.load(..., rank_processes=False)`), or on
        another device.
    Example: glia.load("sharded.neff", device="adversarial", rank_processes=True)
    """

    code = "GLIA532"
    message = "ranks cannot run in processes of their own: {why}"
    help = "leave out rank_processes, or --processes; under mpirun, start one process"


class MpiMissing(CompileError):
    """`mpirun` has started several processes, and MPI cannot be used from Python.

    Cause: mpi4py is not installed, or it does not find the library of MPI that it was built with.
    Fix: Install MPI (Debian: openmpi-bin and libopenmpi-dev), then mpi4py for this Python: the
        extra `mpi`.
    Example: mpirun -n 8 glia run sharded.neff without mpi4py
    """

    code = "GLIA533"
    message = "mpirun has started several processes, and mpi4py cannot be used: {reason}"
    help = "apt-get install openmpi-bin libopenmpi-dev, then pip install 'glia[mpi]'"


class WrongProcesses(CompileError):
    """The ranks of a model cannot be shared out evenly among the processes of `mpirun`.

    Cause: There are more processes than ranks, or their number does not divide that of the ranks.
    Fix: Start a process for each rank, or as many as divide their number: each then has several
        ranks, in threads.
    Example: mpirun -n 3 glia run of a NEFF for 8 ranks
    """

    code = "GLIA534"
    message = "the model is for {ranks} ranks, which {processes} processes cannot share evenly"
    help = "start {ranks} processes (mpirun -n {ranks}), or as many as divide {ranks}"


class DifferentPrograms(CompileError):
    """The processes of `mpirun` have loaded different programs.

    Cause: The file is not the same on all hosts, or a process was given another one.
    Fix: Give all of them the same file, in a file system that they share, or copied to each.
    Example: mpirun -n 1 glia run a.neff : -n 1 glia run b.neff
    """

    code = "GLIA535"
    message = "the {processes} processes of mpirun have loaded different programs"
    help = "give all of them the same NEFF; compare the files on the hosts with sha256sum"
