"""The list of passes says only what is true of it."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from glia.options import CompileOptions, OptionArguments
from glia.pipeline import PIPELINE, Pass

LEVELS = ("graph", "tile", "machine")
EFFECTIVE_OPTIONS = frozenset(name for each in PIPELINE for name in each.options)


def test_names_are_distinct() -> None:
    names = [each.name for each in PIPELINE]
    assert len(set(names)) == len(names)


def test_levels_only_go_down_and_end_at_the_machine() -> None:
    order = [LEVELS.index(each.makes) for each in PIPELINE]
    assert order == sorted(order)
    assert order[-1] == len(LEVELS) - 1


@pytest.mark.parametrize("each", PIPELINE, ids=lambda each: each.name)
def test_what_a_pass_relies_on_stands_before_it(each: Pass) -> None:
    before = [other.name for other in PIPELINE[: PIPELINE.index(each)]]
    assert set(each.after) <= set(before)
    assert all(reason.strip() for reason in each.after.values())


@pytest.mark.parametrize("each", PIPELINE, ids=lambda each: each.name)
def test_a_pass_exists_and_says_what_it_does(each: Pass) -> None:
    module, _, name = each.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    assert function.__doc__


def test_passes_obey_options_that_exist() -> None:
    assert {field.name for field in dataclasses.fields(CompileOptions)} >= EFFECTIVE_OPTIONS


def test_every_option_is_obeyed() -> None:
    of_commands = {"framework", "logfile", "output", "verbose", "dump"}
    of_compile = {"verify", "fast_loading_neuron_binaries", "fast_context_switch"}
    of_compile |= {"num_parallel_jobs", "cache_dir", "no_cache", "logical_nc_config"}
    fields = {field.name for field in dataclasses.fields(CompileOptions)}
    assert fields == EFFECTIVE_OPTIONS | of_commands | of_compile


def test_type_checkers_know_every_option_of_compile() -> None:
    in_signature = {"target", "optlevel", "auto_cast"}
    fields = {field.name: field.type for field in dataclasses.fields(CompileOptions)}
    by_keyword = {name: kind for name, kind in fields.items() if name not in in_signature}
    assert dict(OptionArguments.__annotations__.items()).keys() == by_keyword.keys()
    for name, kind in OptionArguments.__annotations__.items():
        assert kind.__forward_arg__ == by_keyword[name]
