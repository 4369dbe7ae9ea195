"""What a kernel imports as `nt`: annotations of its parameters.

`nt.tensor` and `nt.tensor[128, 512]` say that a parameter is a tensor, `nt.mutable_tensor` that
the kernel writes it, `nt.scalar` that it is a number. They are not enforced; to editors and
type checkers a tensor is an NkiTensor.
"""

# The names are those that kernels write.
# ruff: noqa: N801

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class Annotation:
    """A type that also takes a shape in brackets, or a list of sizes and a dtype."""

    shape: tuple[Any, ...] | None = None
    dtype: Any = None

    def __class_getitem__(cls, shape: Any) -> type:
        sizes = shape if isinstance(shape, tuple) else (shape,)
        dtype = None
        if len(sizes) == 2 and isinstance(sizes[0], list | tuple):
            sizes, dtype = tuple(sizes[0]), sizes[1]
        return type(cls.__name__, (cls,), {"shape": sizes, "dtype": dtype})


if TYPE_CHECKING:
    from glia.nki.tensors.nki_tensor import NkiTensor

    immutable = NkiTensor
    mutable = NkiTensor
    mutable_tensor = NkiTensor
    tensor = NkiTensor
else:

    class tensor(Annotation):
        """A tensor."""

    class mutable_tensor(Annotation):
        """A tensor that the kernel writes."""

    class mutable(Annotation):
        """What the kernel writes."""

    class immutable(Annotation):
        """What the kernel only reads."""


class scalar(Annotation):
    """A number."""


__all__ = ["immutable", "mutable", "mutable_tensor", "scalar", "tensor"]
