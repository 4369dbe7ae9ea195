"""The functions of nki.isa, generated from the declarations of instructions.

Rules, engines, types, most defaults and the help text come from the declaration; a function itself
states only the documented names and order of its parameters.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from glia.arch import ARCHS
from glia.base.affine import Affine
from glia.isa import INSTRUCTIONS
from glia.isa.kit import Instr
from glia.nki.issue.call_cache import AccumulateQuery, IssueFunction, memoize_calls
from glia.nki.issue.former_signatures import SIGNATURE_CHANGES, upgrade_call
from glia.nki.issue.instruction import Arguments, attribute, issue
from glia.nki.issue.signature_checks import require_binding
from glia.nki.names.enums import dge_mode, engine, matmul_perf_mode, oob_mode, reduce_cmd
from glia.nki.names.errors import MaskNotSupported, NotInNki
from glia.nki.session.session import Session, caller, current, value_text
from glia.nki.tensors.nki_object import NkiInstruction

Function = TypeVar("Function", bound=Callable[..., Any])
Prepare = Callable[[Arguments, Session], Arguments]

# Defaults and annotations of parameters that mean the same in every function.
SHARED_DEFAULTS: dict[str, Any] = {
    "engine": engine.unknown,
    "name": None,
    "priority": None,
    "oob_mode": oob_mode.error,
    "dge_mode": dge_mode.unknown,
    "reduce_cmd": reduce_cmd.idle,
    "perf_mode": matmul_perf_mode.none,
    "keepdims": False,
}
ANNOTATIONS = {
    "engine": "engine", "name": "str | None", "priority": "int | None", "oob_mode": "oob_mode",
    "dge_mode": "dge_mode", "reduce_cmd": "reduce_cmd", "perf_mode": "matmul_perf_mode",
    "axis": "int | tuple[int, ...]", "axes": "tuple[int, ...] | None", "keepdims": "bool",
    "pattern": "list[list[int]]", "tile_position": "tuple[int, int] | tuple[()]",
    "tile_size": "tuple[int, int] | tuple[()]", "scales": "list[float] | None",
}  # fmt: skip
# Whether a value has an attribute's declared type; integers are valid floats.
TYPE_PREDICATES: dict[str, Callable[[Any], bool]] = {
    "None": lambda value: value is None,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, int) and value in (0, 1),
    "int": lambda value: isinstance(value, int),
    "float": lambda value: isinstance(value, int | float),
    "Affine": lambda value: isinstance(value, Affine),
    "tuple[int, ...]": lambda value: _is_tuple_of(value, int),
    "tuple[float, ...]": lambda value: _is_tuple_of(value, int | float),
}
REQUIRED = inspect.Parameter.empty  # a default for parameters that have none
# Keywords of earlier releases that have no effect: mask=None, and dtype=, which is that of dst.
OBSOLETE_KEYWORDS = ("mask", "dtype")


def make_function(
    name: str,
    parameters: str,
    *,
    mnemonic: str = "",
    renamed: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    prepare: Prepare | None = None,
    accumulate_query: AccumulateQuery | None = None,
    module: str = "nki.isa",
) -> Callable[..., NkiInstruction]:
    """A function of this name that issues the instruction of this mnemonic, by default the name.

    `parameters` are the documented names in order. `renamed` maps those with another name in the
    declaration, `defaults` gives defaults that differ from the declaration's. `prepare` converts
    the arguments, by documented name, before renaming; `accumulate_query` is the only state of the
    session that it may read. A parameter that has no field after that is documented but unsupported
    and takes its default only.
    """
    instruction = INSTRUCTIONS[mnemonic or name]
    aliases = dict(renamed or {})
    documented = {field: parameter for parameter, field in aliases.items()}
    signature = _signature(instruction, parameters.split(), aliases, dict(defaults or {}))
    bind = Binder(f"{module}.{name}", signature)
    optional = {f.name for f in dataclasses.fields(instruction) if "None" in str(f.type)}
    takes_engine = "engine" in signature.parameters
    known = {"engine", "name", *(f.name for f in dataclasses.fields(instruction))}
    unsupported = {
        each: parameter.default
        for each, parameter in signature.parameters.items()
        if aliases.get(each, each) not in known
    }

    predicates = {
        each: (attribute_predicate(instruction, aliases.get(each, each)), parameter.default)
        for each, parameter in signature.parameters.items()
    }

    def issue_uncached(args: tuple[Any, ...], kwargs: Arguments) -> NkiInstruction:
        session = current(bind.name)
        given = bind(args, kwargs)
        if prepare is not None:
            given = prepare(given, session)
        for each, value in given.items():
            fits, default = predicates.get(each, (None, None))
            if fits is not None and value is not default and not fits(attribute(value, caller())):
                raise NotInNki(feature=f"{bind.name} with {each}={value_text(value)}", loc=caller())
        chosen = given.pop("engine", engine.unknown) if takes_engine else engine.unknown
        if not isinstance(chosen, engine):
            raise NotInNki(
                feature=f"engine {value_text(chosen)} (give nki.isa.engine...)", loc=caller()
            )
        del given["name"]
        for each, default in unsupported.items():
            value = given.pop(each, default)
            if value is not default and (isinstance(value, np.ndarray) or value != default):
                raise NotInNki(feature=f"{bind.name} with {each}={value_text(value)}", loc=caller())
        fields = {}
        for each, value in given.items():
            target = aliases.get(each, each)
            if value is not None or target in optional:
                fields[target] = value
        return issue(session, name, instruction, fields, chosen, names=documented)

    issuing = IssueFunction(issue_uncached, tuple(signature.parameters), aliases, accumulate_query)
    return with_metadata(
        memoize_calls(issuing), name, module, signature, describe(instruction, documented)
    )


def _is_tuple_of(values: Any, kind: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(each, kind) for each in values)


def issuer(name: str) -> Callable[..., NkiInstruction]:
    """A function that issues the instruction with fields by name, on its first legal engine.

    It is for functions of nl, which check their own arguments.
    """
    instruction = INSTRUCTIONS[name]

    def issue_uncached(args: tuple[Any, ...], kwargs: Arguments) -> NkiInstruction:
        return issue(current(f"nki.isa.{name}"), name, instruction, kwargs)

    return memoize_calls(IssueFunction(issue_uncached, (), {}))


class Binder:
    """Binds arguments to the parameters of a signature; much faster than Signature.bind."""

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        self.name = name
        self._signature = signature
        self._names = tuple(signature.parameters)
        self._known = signature.parameters.keys()
        self._has_earlier_signatures = name in SIGNATURE_CHANGES
        empty = inspect.Parameter.empty
        parameters = signature.parameters.values()
        self._defaults = {p.name: p.default for p in parameters if p.default is not empty}

    def __call__(self, args: tuple[Any, ...], kwargs: Arguments) -> Arguments:
        """Every parameter by name; WrongArguments or MaskNotSupported where they do not fit."""
        if self._has_earlier_signatures:
            args, kwargs = upgrade_call(self.name, args, kwargs) or (args, kwargs)
        given = {**self._defaults, **kwargs}
        if args:
            positional = self._names[: len(args)]
            if any(name in kwargs for name in positional):
                require_binding(self.name, self._signature, args, kwargs)
            given.update(zip(positional, args, strict=False))
        if given.keys() != self._known or len(args) > len(self._names):
            return self._bind_without_obsolete(args, kwargs)
        return given

    def _bind_without_obsolete(self, args: tuple[Any, ...], kwargs: Arguments) -> Arguments:
        """Bind again without the obsolete keywords."""
        left = {k: v for k, v in kwargs.items() if k not in OBSOLETE_KEYWORDS or k in self._names}
        if kwargs.get("mask") is not None and "mask" not in self._names:
            raise MaskNotSupported(function=self.name, loc=caller())
        if len(left) == len(kwargs):
            require_binding(self.name, self._signature, args, kwargs)
        return self(args, left)


def _signature(
    instruction: type[Instr], names: list[str], aliases: dict[str, str], defaults: Arguments
) -> inspect.Signature:
    declared = {f.name: f for f in dataclasses.fields(instruction)}
    empty = inspect.Parameter.empty
    unknown = {aliases[name] for name in names if name in aliases} - declared.keys()
    if unknown:
        raise TypeError(f"{instruction.__name__} has no {', '.join(sorted(unknown))}")

    def parameter(name: str) -> inspect.Parameter:
        field = declared.get(aliases.get(name, name))
        default = empty
        if field is not None and field.default is not dataclasses.MISSING:
            default = field.default
        default = defaults.get(name, SHARED_DEFAULTS.get(name, default))
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        annotation = ANNOTATIONS.get(name) or _annotation(instruction, field)
        return inspect.Parameter(name, kind, default=default, annotation=annotation)

    parameters = [parameter(name) for name in (*names, "name")]
    return inspect.Signature(parameters, return_annotation="NkiInstruction")


def _annotation(instruction: type[Instr], field: dataclasses.Field[Any] | None) -> str:
    """The type of a parameter, from the declaration of its operand or attribute."""
    if field is None:
        return "Any"
    operand = instruction.operand_declarations.get(field.name)
    if operand is None:
        is_operator = field.type == "str" and ("op" in field.name or field.name == "function")
        return "Op" if is_operator else str(field.type).replace("Affine", "VirtualRegister")
    text = "list[NkiTensor]" if operand.is_several else "NkiTensor"
    if operand.allows_immediate:
        text = f"{text} | float"
    return f"{text} | None" if operand.is_optional else text


def attribute_predicate(instruction: type[Instr], name: str) -> Callable[[Any], bool] | None:
    """Whether a value is valid for an attribute; None for operands and undeclared types."""
    if name not in instruction.attribute_names:
        return None
    declared = next(field for field in dataclasses.fields(instruction) if field.name == name)
    kinds = [TYPE_PREDICATES.get(each.strip()) for each in str(declared.type).split("|")]
    known = [each for each in kinds if each is not None]
    return (lambda value: any(fits(value) for fits in known)) if len(known) == len(kinds) else None


def describe(instruction: type[Instr], names: Mapping[str, str] | None = None) -> str:
    """The help text of an instruction: its meaning, engines, generations and rules."""
    engines = ", ".join(instruction.engines)
    with_nki = [arch.generation for arch in ARCHS if arch.capabilities.has_nki]
    generations = [each for each in with_nki if each in instruction.generations]
    lines = [inspect.cleandoc(instruction.__doc__ or ""), "", f"Engines: {engines}."]
    if generations != with_nki:
        lines.append(f"Generations: {', '.join(map(str, generations))}.")
    if instruction.rules:
        lines += ["", "Rules:"]
        lines += [f"* {rule.text(names or {})}" for rule in instruction.rules]
    return "\n".join(lines)


def with_metadata(
    function: Function, name: str, module: str, signature: inspect.Signature, text: str
) -> Function:
    """The function with its documented name, module, signature and help text."""
    described: Any = function
    described.__name__ = described.__qualname__ = name
    described.__module__ = f"glia.{module}"
    described.__signature__ = signature
    described.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {
        "return": signature.return_annotation
    }
    described.__doc__ = text
    return function
