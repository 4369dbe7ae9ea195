"""Whatever is chosen for each nest of a program, two cores give what one gives, without a race.

The reference device runs cores, engines and queues in a hostile order and proves by vector clocks
that no other order could give another result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from glia.arch import get_target
from glia.frontend.registry import read_module
from glia.machine.ir import Program as MachineProgram
from glia.machine.merge_cores import joined_program
from glia.machine.shared_places import separate_memories, shared_places
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.pipeline import BEFORE_CORES
from glia.runtime.errors import ProgramFault
from glia.runtime.model import Model, load
from glia.tile.cores.counted_loops import shared_loops
from glia.tile.cores.divide import divided
from glia.tile.cores.sharing import ALONE, BOTH, Sharing
from glia.tile.ir import Exchange, Nest, Program
from glia.tile.passes import put_channels_first
from glia.tile.text import parse_program, print_program
from support.corpus import PROGRAMS, assert_close, hlo_bytes
from support.corpus import Program as Sample

TARGETS = ("trn2", "trn3")
UNDIVIDED = ("cond", "nested_loops", "switch", "while_loop")  # by what is computed
COUNTED = ("fori_loop", "random_bits", "random_normal", "scan")
UNLIKE = ("complex", "fft")  # complex numbers are pairs of tensors
DIVISIBLE = [p for p in PROGRAMS if not any(part in p.name for part in UNLIKE)]


def options(target: str) -> CompileOptions:
    return CompileOptions(target, auto_cast="none", optlevel=2, verify=True)


def before_cores(sample: Sample, target: str) -> Program:
    return run_pipeline(read_module(hlo_bytes(sample)), options(target), stop_after=BEFORE_CORES)


def sharing(sample: Sample, target: str) -> Sharing:
    """The statements of a sample."""
    whole = before_cores(sample, target)
    assert whole.body
    return Sharing(whole, get_target(target).arch)


def compiled(cores: tuple[Program, ...], target: str) -> tuple[MachineProgram, ...]:
    made = [run_pipeline(each, options(target), start_after=BEFORE_CORES) for each in cores]
    return separate_memories(made, shared_places(cores[0])[1])


def model(programs: tuple[MachineProgram, ...], device: str) -> Model:
    return load(Neff(programs), device=device)


@pytest.mark.filterwarnings("ignore::glia.runtime.model.OutOfBoundAccess")
@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[pytest.mark.nightly] * (n % 4 > 1)) for n in range(len(DIVISIBLE))],
)
def test_two_cores_give_what_jax_gives(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sample, target = DIVISIBLE[number], TARGETS[number % 2]
    found = sharing(sample, target)
    rng = np.random.default_rng(number)
    found.chosen = [str(rng.choice(choices)) for choices in found.choices]
    programs = compiled(divided(found), target)
    arrays = [np.asarray(a) for a in sample.arguments]
    monkeypatch.setenv("NEURON_SIM_SEED", str(number))
    for device in ("reference", "host"):
        assert_close(sample, list(model(programs, device)(*arrays)))


def shared_at_random(
    function: Any, arguments: Any, target: str, rng: np.random.Generator
) -> tuple[MachineProgram, ...]:
    """The programs of two cores of a function, with a choice for each nest drawn at random."""
    graph = read_module(jax.jit(function).lower(*arguments))
    whole = run_pipeline(graph, options(target), stop_after=BEFORE_CORES)
    found = Sharing(whole, get_target(target).arch)
    found.chosen = [str(rng.choice(choices)) for choices in found.choices]
    return compiled(divided(found), target)


def require_expected(
    programs: tuple[MachineProgram, ...], arrays: Sequence[Any], expected: Any
) -> None:
    """Both devices give what is expected."""
    wanted = jax.tree.leaves(expected)
    for device in ("reference", "host"):
        for made, each in zip(model(programs, device)(*arrays), wanted, strict=True):
            np.testing.assert_allclose(made, each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", range(8))
def test_images_that_both_cores_write_are_copied_in_their_parts(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_channels_first, "_least_elements", lambda _: 1)
    rng, target = np.random.default_rng(number), TARGETS[number % 2]
    x = rng.standard_normal((2, 8, 6, 10), np.float32)
    w = rng.standard_normal((3, 3, 10, 10), np.float32) / 10

    def images(x: Any, w: Any) -> Any:
        found = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.concatenate([found, jnp.tanh(x[:, :, 1:4])], 2)

    require_expected(shared_at_random(images, (x, w), target, rng), (x, w), images(x, w))


@pytest.mark.parametrize("name", UNDIVIDED)
def test_other_control_flow_runs_on_the_first_core(name: str) -> None:
    found = sharing(named(name), "trn2")
    others = [n for n, each in enumerate(found.body) if not isinstance(each, Nest)]
    assert others and all(found.choices[n] == [ALONE] for n in others)


@pytest.mark.parametrize("name", COUNTED)
def test_counted_loops_run_on_both_cores_which_count_for_themselves(name: str) -> None:
    found = sharing(named(name), "trn2")
    loops = [*shared_loops(found.order)]
    assert loops
    for loop in loops:
        assert loop.condition
        assert all(found.choices[n] == [BOTH] for n in loop.condition if isinstance(n, int))
        assert any(not found.is_counting(n) for n in loop.body if isinstance(n, int))


def decoder(x: Any, weights: Any) -> Any:
    """Layers in a loop, of which each core has some columns: they meet in every iteration."""

    def layer(x: Any, w: Any) -> tuple[Any, Any]:
        up, down = w
        y = jnp.tanh(x @ up) @ down
        return x + y / (1 + jnp.max(jnp.abs(y), -1, keepdims=True)), y.sum()

    return lax.scan(layer, x, weights)


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(8, 60))]
)
def test_layers_in_a_loop_are_shared_in_any_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, target = np.random.default_rng(seed), TARGETS[seed % 2]
    x = rng.standard_normal((6, 16), np.float32)
    weights = [rng.standard_normal(s, np.float32) / 4 for s in ((5, 16, 24), (5, 24, 16))]
    programs = shared_at_random(decoder, (x, weights), target, rng)
    assert joined_program(programs) is not None
    monkeypatch.setenv("NEURON_SIM_SEED", str(seed))
    require_expected(programs, (x, *weights), decoder(x, weights))


def shifting(x: Any, weights: Any) -> Any:
    """A loop whose products of one row read weights transposed, where its counter says."""

    def step(x: Any, w: Any) -> tuple[Any, Any]:
        up, down = w
        return jnp.concatenate([x[1:], jnp.tanh(x[:1] @ up) @ down], 0), x[0]

    return lax.scan(step, x, weights)


@pytest.mark.parametrize("seed", range(6))
def test_offsets_of_transposing_transfers_are_of_the_engine_that_issues_them(seed: int) -> None:
    rng, target = np.random.default_rng(seed), TARGETS[seed % 2]
    x = rng.standard_normal((6, 24), np.float32)
    weights = [rng.standard_normal(s, np.float32) / 4 for s in ((5, 24, 8), (5, 8, 24))]
    programs = shared_at_random(shifting, (x, weights), target, rng)
    require_expected(programs, (x, *weights), shifting(x, weights))


def gradients_of_rows(x: Any, w: Any) -> Any:
    """What a first row is added to and taken from: half of the rows have no share in it."""

    def loss(x: Any) -> Any:
        y = jnp.concatenate([x[:1] * 2, x[1:]], 0) + x[:1]
        return jnp.sum((jnp.tanh(y @ w) + y) ** 2)

    return jax.grad(loss)(x)


@pytest.mark.parametrize("seed", range(8))
def test_halves_that_read_nothing_of_a_tensor_have_their_fill(seed: int) -> None:
    rng, target = np.random.default_rng(seed), TARGETS[seed % 2]
    x, w = (rng.standard_normal(s, np.float32) / 4 for s in ((12, 16), (16, 16)))
    whole = run_pipeline(
        read_module(jax.jit(gradients_of_rows).lower(x, w)),
        options(target),
        stop_after=BEFORE_CORES,
    )
    found = Sharing(whole, get_target(target).arch)
    first = [choices[0] for choices in found.choices]
    found.chosen = [str(rng.choice(c)) for c in found.choices] if seed > 1 else first
    for device in ("reference", "host"):
        (made,) = model(compiled(divided(found), target), device)(x, w)
        np.testing.assert_allclose(made, gradients_of_rows(x, w), rtol=1e-4, atol=1e-5)


def named(name: str) -> Sample:
    return next(each for each in PROGRAMS if each.name == name)


def test_a_program_that_forgets_a_barrier_has_a_race() -> None:
    found = sharing(named("softmax"), "trn2")
    found.chosen = [ALONE if n % 2 else each[0] for n, each in enumerate(found.choices)]
    cores = divided(found)
    assert any(isinstance(each, Exchange) for each in cores[0].body)
    forgetful = tuple(
        replace(each, body=tuple(s for s in each.body if isinstance(s, Nest))) for each in cores
    )
    made = [
        run_pipeline(each, CompileOptions("trn2", auto_cast="none"), start_after=BEFORE_CORES)
        for each in forgetful
    ]
    programs = separate_memories(made, shared_places(cores[0])[1])
    with pytest.raises(ProgramFault, match="race"):
        model(programs, "reference")(*(np.asarray(a) for a in named("softmax").arguments))


def test_the_text_of_a_cores_program_parses_back() -> None:
    found = sharing(named("softmax"), "trn2")
    found.chosen = [choices[0] for choices in found.choices]
    for each in divided(found):
        text = print_program(each)
        assert "\n  cores 2\n" in text
        again = parse_program(text, each.constants)
        assert print_program(again) == text
        assert again.cores == 2


def test_a_search_never_takes_more_than_one_core_does() -> None:
    for sample in DIVISIBLE[::9]:
        found = sharing(sample, "trn2")
        assert found.search() <= found.alone_ns * (1 + 1e-9)
