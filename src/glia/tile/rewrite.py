"""Changing the axes and loads of nests: what several passes need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glia.base.affine import Affine
from glia.tile.ir import Apply, Dynamic, Expr, Guard, Index, Load, Nest, Reduction


def rename_axes(nest: Nest, names: Mapping[str, str]) -> Nest:
    """The nest with its axes called otherwise."""
    return substitute_axes(nest, {old: Affine.of(new) for old, new in names.items()}, names)


def substitute_axes(nest: Nest, values: Mapping[str, Affine], names: Mapping[str, str]) -> Nest:
    """Replace axes by affine expressions in every access; `names` renames the axes themselves."""
    reduction = nest.reduction
    if reduction:
        axes = tuple(names.get(name, name) for name in reduction.axes)
        reduction = Reduction(axes, reduction.function, reduction.dtype)
    target = replace(
        nest.target,
        index=tuple(part.substitute(values) for part in nest.target.index),
        dynamic=tuple(_substitute_dynamic(offset, values) for offset in nest.target.dynamic),
    )
    return replace(
        nest,
        axes=tuple(replace(axis, name=names.get(axis.name, axis.name)) for axis in nest.axes),
        body=substitute(nest.body, values),
        finish=nest.finish and substitute(nest.finish, values),
        target=target,
        reduction=reduction,
    )


def substitute(expression: Expr, values: Mapping[str, Affine]) -> Expr:
    """The expression with axes replaced by affine expressions."""
    if isinstance(expression, Load):
        return replace(
            expression,
            index=tuple(part.substitute(values) for part in expression.index),
            guards=tuple(
                Guard(guard.expression.substitute(values), guard.extent)
                for guard in expression.guards
            ),
            dynamic=tuple(_substitute_dynamic(offset, values) for offset in expression.dynamic),
        )
    if isinstance(expression, Apply):
        return replace(expression, args=tuple(substitute(arg, values) for arg in expression.args))
    if isinstance(expression, Index):
        return replace(expression, expression=expression.expression.substitute(values))
    return expression


def _substitute_dynamic(offset: Dynamic, values: Mapping[str, Affine]) -> Dynamic:
    load = substitute(offset.load, values)
    assert isinstance(load, Load)
    return replace(offset, load=load)
