"""Programs of eight devices in plain JAX give what one device gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import glia
from glia import alternatives, core_programs
from glia.arch import get_target
from glia.frontend.errors import BadStableHlo
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.tile.cores import divide
from glia.tile.cores.sharing import Sharing
from glia.tile.ir import Program
from ranks.jax_programs import PROGRAMS, RankedProgram, piece, random

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")


@pytest.mark.parametrize("number", range(2 * len(PROGRAMS)))
def test_a_program_of_eight_devices_gives_what_one_gives(number: int) -> None:
    make, target = PROGRAMS[number % len(PROGRAMS)], TARGETS[number // 2]
    program = make()
    model = glia.load(glia.compile(program.lowered(), target=target), ranks=8)
    found = model.run_ranks(program.inputs_of_ranks())
    _require_expected(found, program)


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every nest is halved that can be, and two cores are kept, however little that saves."""

    def halves(whole: Program, options: CompileOptions) -> tuple[Program, ...]:
        found = Sharing(whole, get_target(options.target).arch)
        found.chosen = [choices[0] for choices in found.choices]
        return divide.divided(found)

    def first(builds: Sequence[Callable[[], Neff]], *_: int, **__: int) -> tuple[object, ...]:
        return builds[0](), 0, (None,) * len(builds)

    monkeypatch.setattr(core_programs, "divide", halves)
    monkeypatch.setattr(core_programs, "fastest", first)
    monkeypatch.setattr(alternatives, "fastest", first)
    monkeypatch.setattr(alternatives, "without_strategy", lambda ladder, _: ladder)


def _require_expected(found: Sequence[Sequence[object]], program: RankedProgram) -> None:
    for ours, theirs in zip(found, program.expected(), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.usefixtures("halved")
@pytest.mark.parametrize("strategy", ["", "fsdp", "llm-training"])
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_ranks_of_two_cores_give_what_one_gives(number: int, strategy: str) -> None:
    """On the reference device cores and engines run concurrently, and races are faults."""
    program, target = PROGRAMS[number](), ("trn2", "trn3")[number % 2]
    neff = glia.compile(program.lowered(), target=target, distribution_strategy=strategy)
    assert len(neff.programs) == 2
    assert neff.report["precision"]["distribution_strategy"] == strategy
    assert any("the first runs loops" in note for note in neff.notes)
    for device in ("host", "reference"):
        found = glia.load(neff, ranks=8, device=device).run_ranks(program.inputs_of_ranks())
        _require_expected(found, program)


@pytest.mark.usefixtures("halved")
@pytest.mark.parametrize("device", ["host", "reference"])
def test_ranks_of_two_cores_run_in_processes(device: str) -> None:
    program = PROGRAMS[0]()
    neff = glia.compile(program.lowered(), target="trn2")
    assert len(neff.programs) == 2
    model = glia.load(neff, ranks=8, device=device, rank_processes=True)
    _require_expected(model.run_ranks(program.inputs_of_ranks()), program)


def test_shardings_of_arguments_divide_a_program() -> None:
    mesh = AbstractMesh((2, 4), ("d", "t"))
    specs = (P("d"), P(None, "t"), P("t"))
    inputs = [random(8, 16), random(16, 32), random(32, 8)]
    placed = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=NamedSharding(mesh, spec))
        for each, spec in zip(inputs, specs, strict=True)
    ]
    function = jax.jit(lambda x, w, v: jnp.tanh(x @ w) @ v)
    lowered = function.trace(*placed).lower(lowering_platforms=("cpu",))
    model = glia.load(glia.compile(lowered), ranks=8)
    ranks = [
        [piece(each, spec, mesh, rank) for each, spec in zip(inputs, specs, strict=True)]
        for rank in range(8)
    ]
    whole = np.tanh(inputs[0] @ inputs[1]) @ inputs[2]
    for rank, (found,) in enumerate(model.run_ranks(ranks)):
        np.testing.assert_allclose(found, whole[rank // 4 * 4 :][:4], rtol=1e-4, atol=1e-5)


def test_shardings_that_nothing_divides_by_are_refused() -> None:
    text = """module attributes {mhlo.num_partitions = 2 : i32} {
      func.func @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]0,1}"}) -> tensor<4xf32> {
        return %x : tensor<4xf32> } }"""
    with pytest.raises(BadStableHlo, match="mhlo"):
        glia.compile(text)


def test_a_module_says_how_many_replicas_it_is_for() -> None:
    text = """module attributes {mhlo.num_replicas = 3 : i32, mhlo.num_partitions = 2 : i32} {
      func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> } }"""
    neff = glia.compile(text)
    assert (neff.replicas, neff.partitions) == (3, 2)
