"""Every public instruction is declared; every declared one is public or says why it is there."""

from __future__ import annotations

import dataclasses
from string import Formatter

import pytest

from glia import nki
from glia.isa import INSTRUCTIONS
from glia.nki import collectives


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# The functions of nki.isa in NKI 0.6.0 (release 2.32).
NKI_ISA = _names("""
activate2 activation activation_reduce affine_select bn_aggr bn_stats core_barrier dma_compute
dma_copy dma_transpose dropout exponential get_nc_sub_version get_nc_version iota local_gather max8
memset nc_find_index8 nc_match_replace8 nc_matmul nc_matmul_mx nc_n_gather nc_stream_shuffle
nc_transpose nonzero_with_count quantize_mx rand2 rand_get_state rand_set_state range_select
reciprocal register_alloc register_load register_move register_store rng scalar_tensor_tensor
select_reduce sendrecv sequence_bounds set_rng_seed tensor_copy tensor_copy_predicated
tensor_partition_reduce tensor_reduce tensor_scalar tensor_scalar_cumulative tensor_scalar_reduce
tensor_tensor tensor_tensor_scan topk
""")

# The functions of nki.collectives in the same release.
COLLECTIVES = _names("""
all_gather all_gather_v all_reduce all_to_all all_to_all_v collective_permute
collective_permute_implicit collective_permute_implicit_current_processing_rank_id
collective_permute_implicit_reduce rank_id reduce_scatter
""")

# The functions of neuronxcc.nki.isa that nki.isa no longer has.
BETA_ONLY = _names("""
attention_kernel attention_kernel_cache builtin_custom_op tensor_copy_dynamic_dst
tensor_copy_dynamic_src
""")

CALLED_OTHERWISE = {
    "nc_find_index8": "find_index8",
    "nc_match_replace8": "match_replace8",
    "nc_stream_shuffle": "stream_shuffle",
}

NO_INSTRUCTION_OF_THEIR_OWN = {
    "activation_reduce": "activation with command reset_reduce and an operand reduced",
    "attention_kernel": "a kernel inside the compiler of release 2.20, never documented further",
    "attention_kernel_cache": "a kernel inside the compiler of release 2.20, as attention_kernel",
    "builtin_custom_op": "runs a compiled library of the user's on the GpSimd processors",
    "get_nc_sub_version": "asks about the target while a program is built",
    "get_nc_version": "asks about the target while a program is built",
    "register_alloc": "names a register; register_move gives it its first value",
    "tensor_copy_dynamic_dst": "tensor_copy whose dst has a register in its offset",
    "tensor_copy_dynamic_src": "tensor_copy whose src has a register in its offset",
}

WITHOUT_A_FUNCTION = {
    "barrier": "the engines of one core meet, around run-time control flow",
    "dma_gather": "dma_copy and dma_compute with an indirect source",
    "dma_gather_transpose": "dma_transpose with an indirect source",
    "dma_scatter": "dma_copy and dma_compute with an indirect destination",
    "tensor_gather": "every function that takes an indirect view on chip, to read it",
    "tensor_scatter": "every function that takes an indirect view on chip, to write it",
    "register_alu": "loops count and while conditions compare in the sequencers",
}

PUBLIC = (*NKI_ISA, *COLLECTIVES, *BETA_ONLY)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_is_an_instruction_or_says_why_not(name: str) -> None:
    declared = CALLED_OTHERWISE.get(name, name) in INSTRUCTIONS
    assert declared != bool(NO_INSTRUCTION_OF_THEIR_OWN.get(name))


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_instruction_is_public_or_says_why_it_is_there(name: str) -> None:
    is_public = name in PUBLIC or name in CALLED_OTHERWISE.values()
    assert is_public != bool(WITHOUT_A_FUNCTION.get(name))


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_public_instruction_has_a_function(name: str) -> None:
    """A kernel can issue it: by its own name or by the one that nki.isa documents."""
    if name in WITHOUT_A_FUNCTION:
        return
    function = next((public for public, own in CALLED_OTHERWISE.items() if own == name), name)
    module = collectives if function in COLLECTIVES else nki.isa
    assert callable(getattr(module, function))
    assert function in module.__all__


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_rules_name_only_fields_of_the_instruction(name: str) -> None:
    """A brace in a rule's template is an operand or attribute, which NKI may call otherwise."""
    instruction = INSTRUCTIONS[name]
    fields = {field.name for field in dataclasses.fields(instruction)}
    named = {
        found for rule in instruction.rules for _, found, _, _ in Formatter().parse(rule.template)
    }
    assert named <= {None, *fields}


def test_the_tables_name_nothing_else() -> None:
    assert len(PUBLIC) == len(set(PUBLIC)) == 52 + 11 + 5
    assert set(CALLED_OTHERWISE) | set(NO_INSTRUCTION_OF_THEIR_OWN) <= set(PUBLIC)
    assert set(WITHOUT_A_FUNCTION) <= set(INSTRUCTIONS)
