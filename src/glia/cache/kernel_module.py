"""A recorded kernel as an HLO module, by which the compile cache finds it as it finds models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glia.frontend.hlo_import.hlo_proto import messages
from glia.frontend.hlo_import.shapes import ELEMENT_NUMBERS, TUPLE
from glia.machine.ir import Binding

RECORDED_KERNEL = "glia.recorded_kernel"  # the target of the call; its config is the kernel's text
_NO_ELEMENT = 0  # the element type of a dtype that HLO does not have
_COMPUTATION = 1  # the number of the only computation


def kernel_module(
    name: str, inputs: Sequence[Binding], outputs: Sequence[Binding], text: str
) -> bytes:
    """The serialized module of one call, whose backend_config is `text`, on a kernel's arguments.

    It says what was compiled; to compile it, the kernel's Python code is needed.
    """
    module = messages()["Module"](name=name, entry_computation_name=name)
    module.entry_computation_id = _COMPUTATION
    entry = module.computations.add(name=name, id=_COMPUTATION)
    for number, binding in enumerate(inputs):
        entry.instructions.add(
            name=binding.name, opcode="parameter", id=number + 1, parameter_number=number,
            shape=_shape(binding),
        )  # fmt: skip
    entry.root_id = len(inputs) + 1
    results = messages()["Shape"](element_type=TUPLE, tuple_shapes=map(_shape, outputs))
    entry.instructions.add(
        name="kernel", opcode="custom-call", id=entry.root_id, shape=results,
        operand_ids=range(1, len(inputs) + 1), custom_call_target=RECORDED_KERNEL,
        backend_config=text.encode("utf-8", "surrogateescape"),
    )  # fmt: skip
    data: bytes = module.SerializeToString(deterministic=True)
    return data


def _shape(binding: Binding) -> Any:
    number = ELEMENT_NUMBERS.get(binding.dtype.name, _NO_ELEMENT)
    return messages()["Shape"](element_type=number, dimensions=binding.shape)
