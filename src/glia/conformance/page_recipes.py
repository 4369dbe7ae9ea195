"""Inputs and expected results for kernels in the code blocks of documentation pages."""

from __future__ import annotations

import ast
from collections.abc import Callable

import numpy as np

from glia.conformance.library_recipes import RECIPES
from glia.conformance.tutorial_recipes import RecipeT, Trial, floats, recipe

__all__ = ["RECIPES"]  # with those of files


def on_page(page: str, *names: str) -> Callable[[RecipeT], RecipeT]:
    """Register inputs for kernels of one page; the file that the recipe gets is `PAGE` or `PAGE:2`.

    The number is that of the block among those of the page that define such a kernel.
    """
    return recipe(*(f"{page} {name}" for name in names))


def kernels_of_page(tree: ast.Module, page: str) -> list[str]:
    """Undecorated functions of a page that have a recipe."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [
        each.name
        for each in functions
        if not each.decorator_list and f"{page} {each.name}" in RECIPES
    ]


@on_page("nki-dma-overview.rst", "tensor_exp_kernel_isa")
def _exp_of_all(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, *((128, 128) if file.endswith(":2") else (4, 4096)))
    return Trial((x,), (np.exp(x),), tolerance=1e-2)


@on_page("tiling-overview.rst", "tensor_exp_kernel_")
def _reciprocals(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, *((300, 400) if file.endswith(":2") else (256, 512))) + 2
    return Trial((x,), (1 / x,))


@on_page("nki-language-guide.rst", "example_kernel")
def _copied_and_left(rng: np.random.Generator, file: str) -> Trial:
    return Trial((floats(rng, 512, 512).astype(np.float16),), ())


@on_page("nki-language-guide.rst", "relu_kernel")
def _relu(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 256, 512)
    return Trial((x, np.zeros_like(x)), (np.maximum(x, 0),), results=1)


@on_page("nki-language-guide.rst", "scale_kernel")
def _halves(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 256, 512)
    return Trial((x, np.zeros_like(x)), (x / 2,), results=1)


@on_page("lnc.rst", "lnc_test")
def _on_cores(rng: np.random.Generator, file: str) -> tuple[Trial, ...]:
    x = floats(rng, 2, 128, 128) + 2
    expected = (1 / x,) if file.endswith(":2") else ()  # the first only prints
    return Trial((x,), expected), Trial((x,), expected, (2,))


@on_page("nki-aps.rst", "scalar_dynamic_select")
def _fourth_batch(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 4, 128, 512)
    return Trial((x,), (x[3],))


@on_page("nki-aps.rst", "scalar_dynamic_dma")
@on_page("index.rst", "indirect_scalar_dynamic_dma")
def _last_rows(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 512, 512)
    return Trial((x,), (x[384:, :256],))


@on_page("nki-aps.rst", "gather_rows", "indirect_vector_dynamic_dma")
@on_page("index.rst", "indirect_vector_dynamic_dma")
def _even_rows(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 128, 512)
    return Trial((x,), (x[::2],))


@on_page("how-to-scheduling-apis.rst", "kernel")
def _scheduled(rng: np.random.Generator, file: str) -> Trial:
    if file.endswith(":2"):
        return _exp_of_three(rng, file)
    x = floats(rng, 128, 512) + 2
    return Trial((x,), (1 / x + x + 1,))


@on_page("how-to-scheduling-apis.rst", "loop")
def _exp_of_three(rng: np.random.Generator, file: str) -> Trial:
    given = tuple(floats(rng, 128, 512) for _ in range(3))
    return Trial(given, tuple(map(np.exp, given)))


@on_page("nki_simulator.rst", "my_kernel")
def _debugged(rng: np.random.Generator, file: str) -> Trial:
    return Trial((floats(rng, 128, 512),), ())


@on_page("kernel-optimization.rst", "matrix_multiply_kernel")
@on_page("use-neuron-profile.rst", "nki_matmul")
def _product(rng: np.random.Generator, file: str) -> Trial:
    shapes = ((1024, 2048), (1024, 1024))
    if file == "kernel-optimization.rst":
        shapes = ((128, 128), (128, 512))
    a, b = (floats(rng, *shape) for shape in shapes)
    return Trial((a, b), (a.T @ b,))


@on_page("tutorial-debug-neff-nrtpy.rst", "oob_dma_kernel", "fixed_dma_kernel")
def _gathered(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 128, 512)
    expected = np.zeros_like(x)
    expected[:, 0] = x[0, 0]
    return Trial((x,), (expected,))


@on_page("pytorch-native-overview.rst", "sin_kernel")
def _sine(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 128)
    return Trial((x, np.zeros_like(x)), (np.sin(x),), results=1)


@on_page("pytorch-native-overview.rst", "cos_kernel")
def _cosine(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 128)
    return Trial((x, np.zeros_like(x)), (np.cos(x),), results=1)


@on_page("core-dump.rst", "out_of_bounds")
def _gathered_outside(rng: np.random.Generator, file: str) -> Trial:
    return Trial((floats(rng, 128, 512),), ())


@on_page("allocator.rst", "kernel_without_sbm", "kernel_with_sbm")
def _addresses(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 128, 512)
    return Trial((x, np.zeros_like(x)), ())


@on_page("index.rst", "exp_func")
def _exp_of_blocks(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 4, 8, 128, 2, 512)
    return Trial((x,), (np.exp(x),))


@on_page("nki_block_dimension_migration_guide.rst", "exp_func")
def _copied_by_two(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 4, 128, 512)
    return Trial((x,), (x,))


@on_page("how-to-convolution-in-unet.rst", "conv_wrap")
def _convolution(rng: np.random.Generator, file: str) -> Trial:
    image, weights = floats(rng, 2, 6, 10, 12), floats(rng, 9, 6, 3, 3)
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weights)
    return Trial((image, weights, expected.shape), (expected,))


@recipe("sb_blocks", "sb_blocks_migrated", "sb_blocks_migrated_incorrect")
def _copied_by_blocks(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 8, 128, 512)
    return Trial((x,), (x,))
