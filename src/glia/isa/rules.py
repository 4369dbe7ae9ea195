"""Rules shared by instructions: each function makes one Rule from the names of operands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from glia.base.dtype import (
    BF16,
    F8E3M4,
    F8E4M3,
    F8E4M3FN,
    F8E5M2,
    F8E8M0FNU,
    F16,
    F32,
    PACKED_DTYPES,
    PRED,
    S8,
    S16,
    S32,
    TF32,
    U8,
    U16,
    U32,
    DType,
)
from glia.isa.alu import ALU_OPS
from glia.isa.alu import PAGE as ALU_PAGE
from glia.isa.kit import Instr, Rule
from glia.isa.operand import Memory, Pattern

if TYPE_CHECKING:
    from glia.arch import Arch

ARCHITECTURE = "Trainium/Inferentia2 architecture guide, data layout and access patterns"
DTYPE_PAGE = "NKI API common fields, Supported Data Types"

FLOATS = (F32, TF32, BF16, F16, F8E5M2, F8E4M3, F8E4M3FN, F8E3M4)
INTEGERS = (S32, U32, S16, U16, S8, U8, PRED)
ENGINE_DTYPES = (*FLOATS, *INTEGERS, F8E8M0FNU, *PACKED_DTYPES)
LATE_DTYPES = (F8E4M3FN, F8E8M0FNU, *PACKED_DTYPES)
WORDS = (S32, U32)

FREE_DIMS = 4
MOST_DIMS = 1 + FREE_DIMS  # with that of the partitions


def operand(instr: Instr, name: str) -> Pattern | None:
    """The named operand when it is a pattern, None when it is absent or an immediate."""
    value = getattr(instr, name)
    return value if isinstance(value, Pattern) else None


def _listed(names: Iterable[str], separator: str = ", ") -> str:
    """Operands in the template of a rule."""
    return separator.join(f"{{{name}}}" for name in names)


def _pattern_operands(instr: Instr, names: Iterable[str]) -> list[Pattern]:
    return [p for name in names if (p := operand(instr, name)) is not None]


def is_on_chip(pattern: Pattern) -> bool:
    """Whether the pattern lies in SBUF or PSUM."""
    return pattern.memory is not Memory.HBM


def may_start_at(partition: int, partitions: int) -> bool:
    """Whether an engine can start at this partition when it touches so many."""
    if partitions > 64:
        return partition == 0
    return partition % (64 if partitions > 32 else 32) == 0


def start_partition_holds(pattern: Pattern, partitions: int = 0) -> bool:
    """Whether an engine can start reading or writing at the pattern's first partition.

    It touches so many `partitions`, as many as the pattern has unless more are named.
    """
    partitions = max(partitions, pattern.partitions)
    start = pattern.partition
    moves = (start.constant, *(coefficient for _, coefficient in start.terms))
    return all(may_start_at(each, partitions) for each in moves)


def same_elements(*names: str, source: str) -> Rule:
    """All named operands have as many partitions and as many elements in each."""

    def holds(instr: Any, _: Arch) -> bool:
        return len({(p.partitions, p.free) for p in _pattern_operands(instr, names)}) <= 1

    return Rule(
        f"{_listed(names)} must have the same number of partitions and of elements per partition",
        holds,
        source,
        "slice the larger ones, or repeat the smaller ones with a view whose step is 0",
    )


def same_partitions(*names: str, source: str) -> Rule:
    """All named operands have as many partitions."""

    def holds(instr: Any, _: Arch) -> bool:
        return len({p.partitions for p in _pattern_operands(instr, names)}) <= 1

    return Rule(
        f"{_listed(names)} must have the same number of partitions",
        holds,
        source,
        "slice the larger ones to the partitions of the smallest",
    )


def column(name: str, beside: str, *, source: str) -> Rule:
    """The operand is one value for each partition of another."""

    def holds(instr: Any, _: Arch) -> bool:
        patterns = _pattern_operands(instr, (name,))
        partitions = getattr(instr, beside).partitions
        return all(p.free == 1 and p.partitions == partitions for p in patterns)

    return Rule(
        f"{{{name}}} must hold one element for each partition of {{{beside}}}",
        holds,
        source,
        f"give it the shape (partitions of {beside}, 1)",
    )


def at_most_dimensions(name: str, most: int, *, source: str) -> Rule:
    """The operand has few dimensions; those of one element do not count."""

    def holds(instr: Any, _: Arch) -> bool:
        moving = (
            sum(count > 1 for _, count in p.dims[1:]) for p in _pattern_operands(instr, (name,))
        )
        return all(1 + dims <= most for dims in moving)

    return Rule(
        f"{{{name}}} must have at most {most} dimensions",
        holds,
        source,
        "reshape it so that neighbouring dimensions become one, or loop over the outermost",
    )


def free_elements(name: str, count: int, *, source: str) -> Rule:
    """The operand has exactly `count` elements per partition."""

    def holds(instr: Any, _: Arch) -> bool:
        return all(p.free == count for p in _pattern_operands(instr, (name,)))

    return Rule(f"{{{name}}} must have {count} elements per partition", holds, source)


def free_between(name: str, low: int, high: int, *, source: str) -> Rule:
    """The operand has low..high elements per partition."""

    def holds(instr: Any, _: Arch) -> bool:
        return all(low <= p.free <= high for p in _pattern_operands(instr, (name,)))

    least = f"fill it up to {low} elements, or " if low > 1 else ""
    return Rule(
        f"{{{name}}} must have {low} to {high} elements per partition",
        holds,
        source,
        f"{least}loop over slices of at most {high} elements",
    )


def dtypes(name: str, allowed: tuple[DType, ...], *, source: str = DTYPE_PAGE) -> Rule:
    """The operand's dtype is one of `allowed`."""

    def holds(instr: Any, _: Arch) -> bool:
        return all(p.dtype in allowed for p in _pattern_operands(instr, (name,)))

    return Rule(
        f"{{{name}}} must be one of {', '.join(map(str, allowed))}",
        holds,
        source,
        f"give it, or a copy made with tensor_copy, one of these dtypes; {allowed[0]} is one",
    )


def same_dtype(*names: str, source: str) -> Rule:
    """All named operands have one dtype."""

    def holds(instr: Any, _: Arch) -> bool:
        return len({p.dtype for p in _pattern_operands(instr, names)}) <= 1

    return Rule(
        f"{_listed(names)} must have the same dtype",
        holds,
        source,
        "copy one with tensor_copy into a tile of the other's dtype",
    )


def known_op(name: str, *, arity: int | None = None, optional: bool = False) -> Rule:
    """The attribute names an operator of the table that the instruction's engine has."""

    def holds(instr: Any, arch: Arch) -> bool:
        op = getattr(instr, name)
        if not op:
            return optional
        declared = ALU_OPS.get(op)
        if declared is None or (arity is not None and declared.arity != arity):
            return False
        return arch.generation in declared.generations and _has_op(instr.runs_on, declared.engines)

    kind = {None: "an", 1: "a unary", 2: "a binary"}[arity]
    return Rule(f"{{{name}}} must be {kind} operator that its engine has", holds, ALU_PAGE)


def _has_op(engine: str, engines: tuple[str, ...]) -> bool:
    return engine in engines or engine not in ("vector", "gpsimd")


def reducing_op(name: str) -> Rule:
    """The attribute names an operator that reduces."""

    def holds(instr: Any, arch: Arch) -> bool:
        declared = ALU_OPS.get(getattr(instr, name))
        if declared is None or declared.identity is None:
            return False
        return arch.generation in declared.generations

    reducing = sorted(op for op, declared in ALU_OPS.items() if declared.identity is not None)
    cure = f"operators that reduce are {', '.join(reducing)}"
    return Rule(f"{{{name}}} must be an operator that reduces", holds, ALU_PAGE, cure)


def arithmetic(*names: str, source: str) -> Rule:
    """The attributes name arithmetic operators, not those that work on bits."""

    def holds(instr: Any, _: Arch) -> bool:
        named = (ALU_OPS.get(getattr(instr, name)) for name in names)
        return all(op is None or op.family == "arithmetic" for op in named)

    return Rule(f"{_listed(names, ' and ')} must be arithmetic", holds, source)


def has_operand(op: str, value: Pattern | float | None) -> bool:
    """Whether an operator has the operand beside it that a binary one needs."""
    return op not in ALU_OPS or ALU_OPS[op].arity == 1 or value is not None


def unary_alone(*pairs: tuple[str, str], source: str) -> Rule:
    """Where an operator is unary, the operand beside it is None or 0; pairs name both."""

    def holds(instr: Any, _: Arch) -> bool:
        named = ((ALU_OPS.get(getattr(instr, op)), getattr(instr, name)) for op, name in pairs)
        beside = [value for op, value in named if op is not None and op.arity == 1]
        return all(not isinstance(value, Pattern) and value in (None, 0) for value in beside)

    return Rule("a unary operator takes no operand but None or 0", holds, source)


def bitvec_on_integers(op_names: tuple[str, ...], operand_names: tuple[str, ...]) -> Rule:
    """Bitvec operators take and give integers of one width; families do not mix."""

    def holds(instr: Any, _: Arch) -> bool:
        families = {ALU_OPS[op].family for n in op_names if (op := getattr(instr, n)) in ALU_OPS}
        if families <= {"arithmetic"}:
            return True
        patterns = _pattern_operands(instr, operand_names)
        integers = all(p.dtype.is_integer or p.dtype is PRED for p in patterns)
        return len(families) == 1 and integers and len({p.dtype.bits for p in patterns}) == 1

    return Rule(
        "a bitvec operator needs integers of one width, and both operators of its family",
        holds,
        ALU_PAGE,
        "view floats as integers of their width; do bits and arithmetic in two instructions",
    )


def float32_beside_arithmetic(name: str, op_name: str, *, source: str) -> Rule:
    """The operand, where it is a tensor, is float32 when its operator is arithmetic."""

    def holds(instr: Any, _: Arch) -> bool:
        declared = ALU_OPS.get(getattr(instr, op_name))
        if declared is None or declared.family != "arithmetic":
            return True
        return all(p.dtype is F32 for p in _pattern_operands(instr, (name,)))

    return Rule(
        f"{{{name}}} must be float32 beside an arithmetic operator",
        holds,
        source,
        "copy it with tensor_copy into a float32 tile",
    )


def not_both_in_psum(first: str, second: str, *, source: str) -> Rule:
    """At most one of two operands is in PSUM."""

    def holds(instr: Any, _: Arch) -> bool:
        return sum(p.memory is Memory.PSUM for p in _pattern_operands(instr, (first, second))) < 2

    return Rule(
        f"{{{first}}} and {{{second}}} must not both be in PSUM",
        holds,
        source,
        "copy one of them to SBUF first, with tensor_copy",
    )


def _engine_patterns(instr: Instr) -> list[Pattern]:
    return [pattern for pattern in instr.patterns() if is_on_chip(pattern)]


def _within_partitions(instr: Any, arch: Arch) -> bool:
    return all(1 <= p.partitions <= arch.partitions for p in _engine_patterns(instr))


def _start_partitions_are_legal(instr: Any, _: Arch) -> bool:
    free = type(instr).starts_anywhere
    bound = (p for name, _, p in instr.operands() if is_on_chip(p) and name not in free)
    return moves_data(instr) or all(start_partition_holds(p) for p in bound)


def _unit_partition_step(instr: Any, _: Arch) -> bool:
    patterns = _engine_patterns(instr)
    return moves_data(instr) or all(p.dims[0][0] == 1 or p.partitions == 1 for p in patterns)


def _few_free_dims(instr: Any, _: Arch) -> bool:
    return all(len(p.dims) <= MOST_DIMS for p in _engine_patterns(instr))


def _positive_counts(instr: Any, _: Arch) -> bool:
    return all(count >= 1 for p in instr.patterns() for _, count in p.dims)


def _no_broadcast_write(instr: Any, _: Arch) -> bool:
    """An engine writes a row of SBUF in order, so kernels can drop a row in one place."""
    for pattern in instr.written_patterns():
        is_row = pattern.memory is Memory.SBUF and not moves_data(instr)
        repeated = pattern.dims[:1] if is_row else pattern.dims
        if any(step == 0 and count != 1 for step, count in repeated):
            return False
    return True


def _gpsimd_stays_in_sbuf(instr: Any, _: Arch) -> bool:
    if instr.runs_on != "gpsimd" or moves_data(instr):
        return True
    return all(p.memory is not Memory.PSUM for p in _engine_patterns(instr))


def _has_engine_dtypes(instr: Any, _: Arch) -> bool:
    return moves_data(instr) or all(p.dtype in ENGINE_DTYPES for p in _engine_patterns(instr))


def _dtypes_exist_on_core(instr: Any, arch: Arch) -> bool:
    patterns = _engine_patterns(instr)
    is_late = any(p.dtype in LATE_DTYPES for p in patterns)
    return moves_data(instr) or arch.capabilities.has_microscaling_dtypes or not is_late


def _packed_only_where_accepted(instr: Any, _: Arch) -> bool:
    packed = {name for name, _, p in instr.operands() if p.dtype in PACKED_DTYPES}
    taken = type(instr).takes_packed
    if not packed or not packed <= set(taken):
        return not packed
    return "src" not in taken or instr.dst.dtype is instr.src.dtype


def moves_data(instr: Instr) -> bool:
    """Whether DMA engines rather than a compute engine touch the operands."""
    return type(instr).arrives_by_dma


COMMON_RULES = (
    Rule(
        "an operand must span 1 to 128 partitions",
        _within_partitions,
        ARCHITECTURE,
        "loop over slices of 128 partitions",
    ),
    Rule(
        "an operand of more than 64 partitions must start at partition 0, of 33 to 64 at 0 or 64, "
        "of at most 32 at 0, 32, 64 or 96",
        _start_partitions_are_legal,
        ARCHITECTURE,
        "put the rows at such a partition, or move them there with dma_copy",
    ),
    Rule(
        "an engine reads and writes neighbouring partitions",
        _unit_partition_step,
        ARCHITECTURE,
        "gather the partitions with dma_copy, which takes any step",
    ),
    Rule(
        "an on-chip operand has at most 4 free dimensions",
        _few_free_dims,
        ARCHITECTURE,
        "reshape it so that neighbouring dimensions become one, or loop over the outermost",
    ),
    Rule("every dimension counts at least one element", _positive_counts, ARCHITECTURE),
    Rule(
        "an element must not be written twice through a step of 0, but by an engine in a row of "
        "SBUF, where the last stays",
        _no_broadcast_write,
        "NKI Library, qkv_cte",
        "write it once, and repeat it where it is read",
    ),
    Rule(
        "GpSimd reaches SBUF but not PSUM",
        _gpsimd_stays_in_sbuf,
        "NKI nki.isa.tensor_tensor",
        "let the Vector or Scalar engine do it, or copy the operand to SBUF",
    ),
    Rule("an engine operand must have a dtype of the device", _has_engine_dtypes, DTYPE_PAGE),
    Rule(
        "float8_e4m3fn, float8_e8m0fnu and packed floats need generation 4",
        _dtypes_exist_on_core,
        DTYPE_PAGE,
    ),
    Rule(
        "packed floats are copied, filled with 0, quantized to and multiplied, nothing else",
        _packed_only_where_accepted,
        "NKI API common fields, Supported Data Types; NKI migration guide, memset",
    ),
)
