"""The kinds of file that glia reads: sound samples of each, how to damage it, how to use it.

A trial reads a file and, if it reads, takes it as far as it goes: checked, compiled, run, timed and
described. It returns how far that was; whatever it raises is judged by `trials`.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random

import numpy as np
from click.testing import CliRunner

import glia
from fuzz import mutations
from fuzz.mutations import Mutation
from glia.arch import TARGETS, get_target
from glia.base.errors import CompileError
from glia.base.scanner import TextError
from glia.cache.key import canonical_hlo, key_of
from glia.cache.store import CompileCache
from glia.cli.glia import main
from glia.frontend.hlo_import.hlo_proto import messages
from glia.frontend.registry import read_module
from glia.graph.text import parse_graph
from glia.machine.ir import Binding, Program
from glia.machine.legal import program_violations
from glia.machine.text import parse_program as parse_machine
from glia.neff.inspect import describe_neff
from glia.neff.package import Neff
from glia.ntff.trace_file import TraceFile, hash_of
from glia.options import CompileOptions
from glia.plugins.mxnet.lowering import symbol_to_hlo
from glia.plugins.mxnet.parameter_file import parse_parameters, without_prefixes
from glia.plugins.mxnet.symbol_file import parse_symbol
from glia.runtime.arrays import random_array, read_array, read_arrays, read_references
from glia.runtime.model import Model, load
from glia.tile.text import parse_program as parse_tile
from support.mxnet_models.files import SYMBOL_INPUTS, symbol_arrays, symbol_samples
from support.neff_programs import example_neff

MOST_INPUT_BYTES = 16 << 20
DEVICES = ("reference", "adversarial", "host", "host")


@dataclass(frozen=True)
class Kind:
    """A kind of file: its samples by name, its mutations, and what is done with a file."""

    name: str
    samples: str  # of `fuzz.samples`: the function that makes them
    mutations: tuple[Mutation, ...]
    use: Callable[[bytes, Random], str]

    def make_samples(self) -> Mapping[str, bytes]:
        """The samples by name; imports frameworks."""
        found: Mapping[str, bytes] = getattr(import_module("fuzz.samples"), self.samples)()
        return found

    def damaged(self, samples: Mapping[str, bytes], seed: int) -> bytes:
        """The file of a seed: a sample with one of the mutations."""
        random = Random(f"{self.name} {seed}")
        sample = samples[random.choice(sorted(samples))]
        return self.mutations[seed % len(self.mutations)](random, sample)


def run_and_profile(model: Model) -> str:
    """Run a model on random inputs and time it; how far that went."""
    describe = model.profile()
    describe.to_dict(), repr(describe), describe.residences
    inputs = model.inputs
    if sum(_bytes(binding) for binding in inputs) > MOST_INPUT_BYTES:
        return "timed"
    generator = np.random.default_rng(0)
    model.run({b.name: random_array(b.dtype, b.shape, generator) for b in inputs})
    return "run"


def _bytes(binding: Binding) -> int:
    return int(np.prod(binding.shape, dtype=object)) * binding.dtype.bytes


# --- models --------------------------------------------------------------------------------------


def use_module(data: bytes, random: Random) -> str:
    """Compile a model file for any target and level, run it and time it."""
    graph = read_module(data)
    neff = glia.compile(
        graph,
        target=random.choice(sorted(TARGETS)),
        optlevel=random.choice((1, 2, 3)),
        verify=True,
    )
    return run_and_profile(load(neff))


def change_gzip(random: Random, data: bytes) -> bytes:
    """Damage a model, or the gzip member around it."""
    change = random.choice((mutations.replace_bytes, mutations.move_bytes, mutations.cut_bytes))
    if random.random() < 0.2:
        return change(random, gzip.compress(data, 1, mtime=0))
    return gzip.compress(change(random, data), 1, mtime=0)


# --- NEFFs ---------------------------------------------------------------------------------------


def use_neff(data: bytes, random: Random) -> str:
    """Read a NEFF, describe it, load it on a device, run it and time it."""
    describe_neff(data)
    neff = Neff.from_bytes(data)
    repr(neff)
    return run_and_profile(load(neff, device=random.choice(DEVICES)))


# --- texts ---------------------------------------------------------------------------------------


def use_graph_text(data: bytes, random: Random) -> str:
    """Parse the text of a graph, and compile what it says."""
    graph = _parsed(parse_graph, data)
    return "refused" if graph is None else use_module(graph, random)


def use_tile_text(data: bytes, random: Random) -> str:
    """Parse the text of a tile program."""
    program = _parsed(parse_tile, data)
    return "refused" if program is None else "read"


def use_machine_text(data: bytes, random: Random) -> str:
    """Parse the text of a machine program; a legal one is run and timed."""
    program = _parsed(parse_machine, data)
    if program is None or program.target not in TARGETS:
        return "refused"
    if next(program_violations(program, get_target(program.target)), None):
        return "illegal"
    return run_and_profile(load(program, device=random.choice(DEVICES)))


def use_on_host(data: bytes, random: Random) -> str:
    """Run what the text of a machine program says as machine code, whether it is legal or not.

    What no law admits may end in any exception, but not in the process.
    """
    program = _parsed(parse_machine, data)
    if not isinstance(program, Program) or program.target not in TARGETS:
        return "refused"
    broken = next(program_violations(program, get_target(program.target)), None)
    try:
        if sum(_bytes(binding) for binding in program.inputs) > MOST_INPUT_BYTES:
            return "large"
        generator = np.random.default_rng(random.randrange(100))
        inputs = {b.name: random_array(b.dtype, b.shape, generator) for b in program.inputs}
        load(program, device="host").run(inputs)
    except Exception:
        if not broken:
            raise
        return "illegal"
    return "run"


def _parsed(parse: Callable[[str], object], data: bytes) -> object:
    """What a text says; None where it is refused as such."""
    try:
        return parse(data.decode("utf-8", "replace"))
    except TextError:
        return None


# --- arrays --------------------------------------------------------------------------------------


def use_array(data: bytes, random: Random) -> str:
    """Read an array file in each of the ways that commands do."""
    y = example_neff().outputs[0]
    bindings = (Binding("y", y.tile, (3, 4), y.dtype),)
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        Path(file.name).write_bytes(data)
        for read in (read_array, read_arrays, lambda path: read_references(path, bindings)):
            try:
                found = read(file.name)
            except CompileError:
                continue
            for array in found.values() if isinstance(found, dict) else [found]:
                np.asarray(array).sum() if isinstance(array, np.ndarray) else None
    return "read"


def use_trace(data: bytes, random: Random) -> str:
    """Read a trace and ask whether it is of a NEFF."""
    with tempfile.NamedTemporaryFile(suffix=".ntff") as file:
        Path(file.name).write_bytes(data)
        TraceFile.load(file.name).require_neff(file.name, hash_of(example_neff()))
    return "read"


def use_symbol(data: bytes, random: Random) -> str:
    """Read a symbol, and compile what it says for the parameters and inputs that it had."""
    return use_module(symbol_to_hlo(parse_symbol(data), SYMBOL_INPUTS, symbol_arrays()), random)


def use_parameters(data: bytes, random: Random) -> str:
    """Read arrays of MXNet, and compile the model whose they were."""
    arrays = without_prefixes(parse_parameters(data))
    symbol = parse_symbol(symbol_samples()["network"])
    return use_module(symbol_to_hlo(symbol, SYMBOL_INPUTS, arrays), random)


# --- the compile cache ---------------------------------------------------------------------------


def use_cache_entry(data: bytes, random: Random) -> str:
    """List, explain and load a cache entry; a bad one is compiled again, and then is sound."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in mutations.tar_members(data).items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        model = Path(folder, "model.pb")
        entries = CompileCache(Path(folder))
        options = CompileOptions(target="trn2", auto_cast="none")
        known = key_of(canonical_hlo(model.read_bytes()), options).entry
        for command in (["list"], ["list", "--json"], ["explain", known, str(model)]):
            run = CliRunner().invoke(main, ["cache", *command, "--cache_dir", folder])
            if run.exception and not isinstance(run.exception, SystemExit):
                raise run.exception
        neff = entries.compiled(model.read_bytes(), options, example_neff)
        assert [each.problem for each in entries.entries()] == [""]
        return run_and_profile(load(neff))


def _proto() -> object:
    return messages()["Module"]()


BYTES = (mutations.replace_bytes, mutations.move_bytes, mutations.cut_bytes)
TEXT = (mutations.change_numbers, mutations.change_words, mutations.move_lines)
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "hlo", "hlo_samples",
            (mutations.change_fields(_proto), mutations.move_messages(_proto), *BYTES, change_gzip),
            use_module,
        ),
        Kind("stablehlo", "stablehlo_samples", TEXT, use_module),
        Kind("bytecode", "bytecode_samples", BYTES, use_module),
        Kind(
            "neff-bytes", "neff_samples",
            (mutations.replace_bytes, mutations.change_archive, mutations.change_member), use_neff,
        ),
        Kind(
            "neff-integers", "neff_samples",
            (mutations.change_integers, mutations.nudge_integers, mutations.repeat_integers),
            use_neff,
        ),
        Kind("graph-text", "graph_text_samples", TEXT, use_graph_text),
        Kind("tile-text", "tile_text_samples", TEXT, use_tile_text),
        Kind("machine-text", "machine_text_samples", TEXT, use_machine_text),
        Kind("host-programs", "machine_text_samples", TEXT, use_on_host),
        Kind("arrays", "array_samples", BYTES, use_array),
        Kind("mxnet-symbols", "model_symbol_samples", TEXT, use_symbol),
        Kind("mxnet-parameters", "parameter_samples", BYTES, use_parameters),
        Kind("traces", "trace_samples", (*BYTES, mutations.change_trace), use_trace),
        Kind("cache-entries", "cache_samples", (mutations.change_entry,), use_cache_entry),
        Kind(
            "custom-calls", "custom_call_samples", (mutations.change_configs(_proto),), use_module,
        ),
    )
}  # fmt: skip
