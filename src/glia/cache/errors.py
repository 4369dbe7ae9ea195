"""Errors of the compile cache."""

from __future__ import annotations

from glia.base.errors import CompileError


class UnusableCache(CompileError):
    """The compile cache is at a place that glia cannot write to.

    Cause: NEURON_COMPILE_CACHE_URL or `--cache_dir` names an object store, such as s3://bucket.
    Fix: Give a directory, perhaps of a mounted object store; `--no_cache` compiles without.
    Example: NEURON_COMPILE_CACHE_URL=s3://bucket/cache and a call of glia.compile
    """

    code = "GLIA123"
    message = "the compile cache cannot be at {url}: {scheme} is not a file system"
    help = "give a directory, or compile with --no_cache"


class UnknownEntry(CompileError):
    """The compile cache has no single entry of this name, and there is no such file.

    Cause: The name is misspelt, belongs to another cache, or begins the names of several entries.
    Fix: Give a name, or an unambiguous beginning of one, that `glia cache list` prints.
    Example: glia cache explain MODULE_0 model.hlo.pb
    """

    code = "GLIA124"
    message = "{count} entries of {directory} are called {name}..., and there is no such file"
    help = "`glia cache list` prints the names of all entries"


class NoCacheToCollectIn(CompileError):
    """Programs are to be collected for a later compilation, and there is no cache to keep them in.

    Cause: NEURON_EXTRACT_GRAPHS_ONLY is set, but NEURON_COMPILE_CACHE_URL is not, or `no_cache` is
        asked for.
    Fix: Run the program by neuron_parallel_compile, which sets both, or name a directory.
    Example: NEURON_EXTRACT_GRAPHS_ONLY=1 python train.py
    """

    code = "GLIA127"
    message = "{variable} is set, and there is no compile cache in which to collect programs"
    help = "set NEURON_COMPILE_CACHE_URL to a directory, and leave out no_cache"
