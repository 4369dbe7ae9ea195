"""Compiling through the public function: options are checked and statistics are counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import glia
import glia.machine.passes.insert_semaphores as semaphores_module
from glia.base.affine import Affine
from glia.base.errors import CompileError, InternalError
from glia.frontend.hlo import import_hlo
from glia.graph.flops import count_flops
from glia.isa.instructions.dma import DmaCopy
from glia.options import CHOICES, BadOption, CompileOptions, UnsupportedLogicalCore, check_options
from glia.pass_runner import PassResult, run_pipeline
from glia.pipeline import PIPELINE
from support.clean_programs import plant
from support.corpus import BY_NAME, PROGRAMS, assert_close, hlo_bytes

MATMUL = next(program for program in PROGRAMS if program.name == "matmul")


@pytest.mark.parametrize("form", ["bytes", "path", "text path", "graph"])
def test_every_form_of_a_module_compiles_to_the_same_model(form: str, tmp_path: Path) -> None:
    data = hlo_bytes(MATMUL)
    path = tmp_path / "m.pb"
    path.write_bytes(data)
    module = {"bytes": data, "path": path, "text path": str(path), "graph": import_hlo(data)}[form]
    neff = glia.compile(module, target="trn1")
    assert neff.target == "trn1"
    assert neff.options["auto_cast"] == "none"
    assert_close(MATMUL, glia.load(neff)(*MATMUL.arguments))


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"target": "trn9"}, BadOption, "'trn2'"),
        ({"optlevel": "2"}, BadOption, "2, 1, 3"),
        ({"optlevel": True}, BadOption, "True"),
        ({"auto_cast": "some"}, BadOption, "'matmult', 'none', 'all'"),
        ({"implicit_integer_downcast": ("mul",)}, BadOption, "'mul'"),
        ({"target": "trn1", "logical_nc_config": 2}, UnsupportedLogicalCore, "trn1"),
    ],
)
def test_wrong_options_are_named(
    changes: dict[str, object], error: type[CompileError], named: str
) -> None:
    with pytest.raises(error, match=named):
        glia.compile(hlo_bytes(MATMUL), **changes)  # type: ignore[arg-type]


def test_unknown_options_are_type_errors() -> None:
    with pytest.raises(TypeError, match="autocast"):
        glia.compile(hlo_bytes(MATMUL), autocast="none")


def test_the_defaults_are_among_the_choices() -> None:
    check_options(CompileOptions())
    assert all(getattr(CompileOptions(), name) in known for name, known in CHOICES.items())


def test_the_observer_sees_every_pass_in_order() -> None:
    seen: list[PassResult] = []
    glia.compile(hlo_bytes(MATMUL), optlevel=1, observer=seen.append)
    assert [step.name for step in seen] == ["import", *(each.name for each in PIPELINE)]
    assert [step.level for step in seen][1:] == [each.makes for each in PIPELINE]
    assert [step.index for step in seen] == list(range(len(PIPELINE) + 1))


def test_the_pipeline_stops_where_it_is_told() -> None:
    seen: list[str] = []
    graph = import_hlo(hlo_bytes(MATMUL))
    run_pipeline(graph, CompileOptions(), lambda step: seen.append(step.name), "simplify")
    names = [each.name for each in PIPELINE]
    assert seen == ["import", *names[: names.index("simplify") + 1]]
    assert run_pipeline(graph, CompileOptions(), stop_after="import") is graph


def test_flops_of_contractions_are_counted() -> None:
    a, b = (argument.shape for argument in MATMUL.arguments[:2])
    assert count_flops(import_hlo(hlo_bytes(MATMUL))) == 2 * a[0] * a[1] * b[1]


def test_an_illegal_program_is_never_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last pass makes is checked whether or not `verify` asks for every pass."""

    def in_no_loop(copy: DmaCopy) -> DmaCopy:
        offset = copy.src.offset + Affine.of("nowhere")
        return dataclasses.replace(copy, src=dataclasses.replace(copy.src, offset=offset))

    plant(
        monkeypatch, semaphores_module, "insert_semaphores",
        lambda i: isinstance(i, DmaCopy), in_no_loop,
    )  # fmt: skip
    with pytest.raises(InternalError, match="loop variable nowhere is not set here"):
        glia.compile(hlo_bytes(BY_NAME["softmax"]))
