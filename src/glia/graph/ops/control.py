"""Operations with regions or several results, and calls out of the graph."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from glia.base.dtype import PRED, S32
from glia.base.errors import Unspecified
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Node, TensorType, TupleType, Type, one_or_tuple, op, result_type
from glia.graph.type_rules import require, require_length, require_signature, tensor

Array = np.ndarray[Any, Any]

KERNEL = "AwsNeuronCustomNativeKernel"  # the target of a call that holds a kernel's program


@op
class While(Node):
    """Repeat `body` while `condition` (one pred scalar) holds; state is a tuple of tensors."""

    state: tuple[Node, ...]
    condition: Graph
    body: Graph
    opcode: ClassVar[str] = "while"

    def infer(self) -> Type:
        kinds = [tensor(node) for node in self.state]
        require_signature(self.condition, kinds, [TensorType(PRED)], "the condition")
        require_signature(self.body, kinds, kinds, "the loop body")
        return result_type(kinds)

    def compute(self, *arrays: Array) -> Any:
        state = list(arrays)
        while evaluate(self.condition, state)[0]:
            state = evaluate(self.body, state)
        return one_or_tuple(state)


@op
class Conditional(Node):
    """Run one of several branches of equal type; index is pred (true first) or s32 (clamped).

    An s32 index outside the branches runs the last one.
    """

    index: Node
    branch_operands: tuple[Node, ...]  # all branches' operands, concatenated
    operand_counts: tuple[int, ...]
    branches: tuple[Graph, ...]
    opcode: ClassVar[str] = "conditional"

    def infer(self) -> Type:
        require(bool(self.branches), "a conditional needs at least one branch")
        require_length(self.operand_counts, len(self.branches), "operand counts")
        require_length(self.branch_operands, sum(self.operand_counts), "branch operands")
        chooser = tensor(self.index)
        fits = chooser == TensorType(S32) or (
            chooser == TensorType(PRED) and len(self.branches) == 2
        )
        require(fits, f"index {chooser} cannot choose among {len(self.branches)} branches")
        gives = [tensor(result) for result in self.branches[0].results]
        for number, branch in enumerate(self.branches):
            takes = [tensor(node) for node in self.operands_of(number)]
            require_signature(branch, takes, gives, f"branch {number}")
        return result_type(gives)

    def operands_of(self, branch: int) -> tuple[Node, ...]:
        """The operands of one branch."""
        first = sum(self.operand_counts[:branch])
        return self.branch_operands[first : first + self.operand_counts[branch]]

    def compute(self, index: Array, *arrays: Array) -> Any:
        chosen, last = int(index), len(self.branches) - 1
        if index.dtype == np.bool_:
            chosen = 1 - chosen
        branch = chosen if 0 <= chosen <= last else last
        first = sum(self.operand_counts[:branch])
        inputs = arrays[first : first + self.operand_counts[branch]]
        return one_or_tuple(evaluate(self.branches[branch], inputs))


@op
class CustomCall(Node):
    """A call of a named target; `config` is opaque. It evaluates to Unspecified."""

    args: tuple[Node, ...]
    target: str
    result: Type
    config: str
    opcode: ClassVar[str] = "custom_call"
    is_pure: ClassVar[bool] = False

    def infer(self) -> Type:
        return self.result

    def compute(self, *arrays: Array) -> Any:
        raise Unspecified(f"what the custom call {self.target!r} computes is not documented")


@op
class Get(Node):
    """The index-th result of an operation with several."""

    x: Node
    index: int
    opcode: ClassVar[str] = "get"

    def infer(self) -> Type:
        found = self.x.type
        if not isinstance(found, TupleType):
            raise TypeError(f"{self.x!r} has one result of type {found}, nothing to get")
        inside = 0 <= self.index < len(found.elements)
        require(inside, f"result {self.index} of an operation with {len(found.elements)}")
        return found.elements[self.index]

    def compute(self, x: Any) -> Any:
        return x[self.index]


def results_of(node: Node) -> tuple[Node, ...]:
    """One tensor node per result: a `Get` for each when there are several, else the node itself."""
    if isinstance(node.type, TensorType):
        return (node,)
    return tuple(Get(node, index) for index in range(len(node.type.elements)))
