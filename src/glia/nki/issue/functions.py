"""The functions of nki.isa, made from the declarations of instructions.

A function takes its rules, engines, types, most defaults and its help text from the declaration;
the documented names and order of its parameters are all that is said of it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from glia.arch import ARCHS
from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.nki.issue.call_cache import Issuing, Sums, remembering
from glia.nki.issue.former_signatures import FORMS, rewritten
from glia.nki.issue.instruction import Arguments, attribute, issue
from glia.nki.issue.signature_checks import require_fit
from glia.nki.names.enums import dge_mode, engine, matmul_perf_mode, oob_mode, reduce_cmd
from glia.nki.names.errors import BrokenRule, MaskNotSupported, NotInNki
from glia.nki.session.session import Session, caller, current, shown
from glia.nki.tensors.nki_object import NkiInstruction

Function = TypeVar("Function", bound=Callable[..., Any])
Prepare = Callable[[Arguments, Session], Arguments]

# Parameters that mean the same wherever they occur: their defaults, and the dtypes of those.
SHARED: dict[str, Any] = {
    "engine": engine.unknown,
    "name": None,
    "priority": None,
    "oob_mode": oob_mode.error,
    "dge_mode": dge_mode.unknown,
    "reduce_cmd": reduce_cmd.idle,
    "perf_mode": matmul_perf_mode.none,
    "keepdims": False,
}
TYPES = {
    "engine": "engine", "name": "str | None", "priority": "int | None", "oob_mode": "oob_mode",
    "dge_mode": "dge_mode", "reduce_cmd": "reduce_cmd", "perf_mode": "matmul_perf_mode",
    "axis": "int | tuple[int, ...]", "axes": "tuple[int, ...] | None", "keepdims": "bool",
    "pattern": "list[list[int]]", "tile_position": "tuple[int, int] | tuple[()]",
    "tile_size": "tuple[int, int] | tuple[()]", "scales": "list[float] | None",
}  # fmt: skip
# What values of an attribute's declared type are; where a number is asked for a whole one will do.
FITS: dict[str, Callable[[Any], bool]] = {
    "None": lambda value: value is None,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, int) and value in (0, 1),
    "int": lambda value: isinstance(value, int),
    "float": lambda value: isinstance(value, int | float),
    "Affine": lambda value: isinstance(value, Affine),
    "tuple[int, ...]": lambda value: _are(value, int),
    "tuple[float, ...]": lambda value: _are(value, int | float),
}
REQUIRED = inspect.Parameter.empty  # a default for parameters that have none
# What earlier releases took besides: a mask that is None, and a dtype, though that of a result is
# that of dst.
EARLIER = ("mask", "dtype")
# Operands and attributes in the sentence of a rule, which is about the first words, and after it.
SUBJECT = re.compile(
    r"^(\w+ )?\(?\w+(, \w+| and \w+)*\)?(?= (must|needs?|takes?|cannot|partition) )|\bof data\b"
)
OPERAND = re.compile(r"(?<![^ ])\w+(?= is )")


def make_function(
    name: str,
    instruction: type[Instr],
    parameters: str,
    *,
    renamed: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    prepare: Prepare | None = None,
    sums: Sums | None = None,
    module: str = "nki.isa",
) -> Callable[..., NkiInstruction]:
    """A function of this name that issues the instruction.

    `parameters` are the documented names in order. `renamed` maps those that the declaration calls
    otherwise, `defaults` gives defaults that differ from the declaration's. `prepare` maps the
    arguments, by documented name, before that; `sums` is all that it may ask of the session. What
    it leaves and the declaration does not have is documented as not supported yet: such a parameter
    takes its default and nothing else.
    """
    aliases = dict(renamed or {})
    signature = _signature(instruction, parameters.split(), aliases, dict(defaults or {}))
    bind = Binder(f"{module}.{name}", signature)
    optional = {f.name for f in dataclasses.fields(instruction) if "None" in str(f.type)}
    takes_engine = "engine" in signature.parameters
    known = {"engine", "name", *(f.name for f in dataclasses.fields(instruction))}
    not_yet = {
        each: parameter.default
        for each, parameter in signature.parameters.items()
        if aliases.get(each, each) not in known
    }

    takes = {
        each: (accepted(instruction, aliases.get(each, each)), parameter.default)
        for each, parameter in signature.parameters.items()
    }

    def anew(args: tuple[Any, ...], kwargs: Arguments) -> NkiInstruction:
        session = current(bind.name)
        given = bind(args, kwargs)
        if prepare is not None:
            given = prepare(given, session)
        for each, value in given.items():
            fits, default = takes.get(each, (None, None))
            if fits is not None and value is not default and not fits(attribute(value, caller())):
                raise NotInNki(feature=f"{bind.name} with {each}={shown(value)}", loc=caller())
        chosen = given.pop("engine", engine.unknown) if takes_engine else engine.unknown
        if not isinstance(chosen, engine):
            raise NotInNki(feature=f"engine {shown(chosen)} (give nki.isa.engine...)", loc=caller())
        del given["name"]
        for each, default in not_yet.items():
            value = given.pop(each, default)
            if value is not default and (isinstance(value, np.ndarray) or value != default):
                raise NotInNki(feature=f"{bind.name} with {each}={shown(value)}", loc=caller())
        fields = {}
        for each, value in given.items():
            target = aliases.get(each, each)
            if value is not None or target in optional:
                fields[target] = value
        try:
            return issue(session, name, instruction, fields, chosen)
        except BrokenRule as broken:
            rule = in_words_of(aliases, str(broken.facts["rule"]))
            facts = {**broken.facts, "rule": rule}
            raise BrokenRule(**facts, instruction=broken.instruction, loc=broken.loc) from None

    issuing = Issuing(anew, tuple(signature.parameters), aliases, sums)
    return dressed(remembering(issuing), name, module, signature, describe(instruction, aliases))


def _are(values: Any, kind: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(each, kind) for each in values)


def issuer(name: str, instruction: type[Instr]) -> Callable[..., NkiInstruction]:
    """What issues the instruction with the fields given by name, on the first engine that may.

    It is for functions of nl, which have checked what they were given.
    """

    def anew(args: tuple[Any, ...], kwargs: Arguments) -> NkiInstruction:
        return issue(current(f"nki.isa.{name}"), name, instruction, kwargs)

    return remembering(Issuing(anew, (), {}))


class Binder:
    """Binds arguments to the parameters of a signature; much faster than Signature.bind."""

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        self.name = name
        self._signature = signature
        self._names = tuple(signature.parameters)
        self._known = signature.parameters.keys()
        self._has_earlier_forms = name in FORMS
        empty = inspect.Parameter.empty
        parameters = signature.parameters.values()
        self._defaults = {p.name: p.default for p in parameters if p.default is not empty}

    def __call__(self, args: tuple[Any, ...], kwargs: Arguments) -> Arguments:
        """Every parameter by name; WrongArguments or MaskNotSupported where they do not fit."""
        if self._has_earlier_forms:
            args, kwargs = rewritten(self.name, args, kwargs) or (args, kwargs)
        given = {**self._defaults, **kwargs}
        if args:
            positional = self._names[: len(args)]
            if any(name in kwargs for name in positional):
                require_fit(self.name, self._signature, args, kwargs)
            given.update(zip(positional, args, strict=False))
        if given.keys() != self._known or len(args) > len(self._names):
            return self._without_earlier(args, kwargs)
        return given

    def _without_earlier(self, args: tuple[Any, ...], kwargs: Arguments) -> Arguments:
        """Bind again without keywords of earlier releases that change nothing."""
        left = {k: v for k, v in kwargs.items() if k not in EARLIER or k in self._names}
        if kwargs.get("mask") is not None and "mask" not in self._names:
            raise MaskNotSupported(function=self.name, loc=caller())
        if len(left) == len(kwargs):
            require_fit(self.name, self._signature, args, kwargs)
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
        default = defaults.get(name, SHARED.get(name, default))
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        annotation = TYPES.get(name) or _annotation(instruction, field)
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


def accepted(instruction: type[Instr], name: str) -> Callable[[Any], bool] | None:
    """What an attribute may be; None for operands, and what is no attribute."""
    if name not in instruction.attribute_names:
        return None
    declared = next(field for field in dataclasses.fields(instruction) if field.name == name)
    kinds = [FITS.get(each.strip()) for each in str(declared.type).split("|")]
    known = [each for each in kinds if each is not None]
    return (lambda value: any(fits(value) for fits in known)) if len(known) == len(kinds) else None


def in_words_of(aliases: Mapping[str, str], rule: str) -> str:
    """A rule, and the operands it was broken by, with the names that parameters have."""
    outer = {inner: name for name, inner in aliases.items()}
    if not outer:
        return rule
    sentence, here, operands = rule.partition("; here ")

    def renamed(found: re.Match[str]) -> str:
        return re.sub(r"\w+", lambda word: outer.get(word[0], word[0]), found[0])

    return SUBJECT.sub(renamed, sentence) + here + OPERAND.sub(renamed, operands)


def describe(instruction: type[Instr], aliases: Mapping[str, str] | None = None) -> str:
    """Help: what the instruction does, its engines and its rules."""
    engines = ", ".join(instruction.engines)
    with_nki = [arch.generation for arch in ARCHS if arch.capabilities.has_nki]
    generations = [each for each in with_nki if each in instruction.generations]
    lines = [inspect.cleandoc(instruction.__doc__ or ""), "", f"Engines: {engines}."]
    if generations != with_nki:
        lines.append(f"Generations: {', '.join(map(str, generations))}.")
    if instruction.rules:
        lines += ["", "Rules:"]
        lines += [f"* {in_words_of(aliases or {}, rule.sentence)}" for rule in instruction.rules]
    return "\n".join(lines)


def dressed(
    function: Function, name: str, module: str, signature: inspect.Signature, text: str
) -> Function:
    """The function with its name, signature and help."""
    described: Any = function
    described.__name__ = described.__qualname__ = name
    described.__module__ = f"glia.{module}"
    described.__signature__ = signature
    described.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {
        "return": signature.return_annotation
    }
    described.__doc__ = text
    return function
