"""`glia conformance nki` runs the kernels that stand in the code blocks of documentation pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from glia.conformance.outcome import Outcome
from glia.conformance.pages import blocks_of, excerpts
from glia.conformance.run import run_all

PAGE = """
A page
======

.. code-block:: python
   :linenos:

   import nki
   import nki.language as nl

   LIMIT = 128

Then, as everyone does::

    def checked(x):
        assert x.shape[0] <= LIMIT
        return x

.. code-block:: python

   @nki.jit
   def nki_tensor_add_kernel(a_input, b_input):
       a = nl.load(checked(a_input))
       b = nl.load(b_input)
       nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
       out = nl.ndarray(a_input.shape, dtype=a_input.dtype, buffer=nl.shared_hbm)
       nisa.dma_copy(dst=out, src=a)
       return out

.. code-block:: text

   @nki.jit
   def no_code(x):
"""


def outcomes_of(folder: Path, text: str) -> list[Outcome]:
    (folder / "page.rst").write_text(text)
    return list(run_all(folder))


def test_a_kernel_of_a_page_runs_with_what_earlier_blocks_and_customs_define(
    tmp_path: Path,
) -> None:
    (outcome,) = outcomes_of(tmp_path, PAGE)
    assert (outcome.file, outcome.kernel) == ("page.rst:21", "nki_tensor_add_kernel")
    assert (outcome.status, outcome.error) == ("pass", 0.0)


def test_the_file_of_a_block_has_the_lines_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(PAGE)
    (excerpt,) = excerpts(page, "nki", tmp_path / "files")
    assert excerpt.path is not None
    written, given = excerpt.path.read_text().split("\n"), PAGE.split("\n")
    assert written[0] == "import nki.isa as nisa"
    assert {number + 1 for number, line in enumerate(written) if line} == {
        1, 8, 9, 11, 15, 16, 17, *range(21, 29),
    }  # fmt: skip
    assert all(line.strip() == given[n].strip() for n, line in enumerate(written) if n and line)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("       ...\n", "not run", "the page omits the body of the kernel"),
        ('       """Says."""\n', "not run", "the page omits the body of the kernel"),
        ("       return elsewhere(x)\n", "not run", "the page does not define elsewhere"),
        (
            "         a = 1\n       return a\n",
            "explained",
            "not valid Python: unindent does not match",
        ),
    ],
)
def test_what_is_only_part_of_a_kernel_is_listed_and_not_run(
    tmp_path: Path, body: str, status: str, reason: str
) -> None:
    head = ".. code-block::\n\n   @nki.jit\n   def kernel(x):\n"
    (outcome,) = outcomes_of(tmp_path, head + body)
    assert (outcome.file, outcome.kernel, outcome.status) == ("page.rst:3", "kernel", status)
    assert reason in outcome.reason


def test_blocks_without_imports_are_of_the_generation_whose_words_they_use(
    tmp_path: Path,
) -> None:
    block = (
        "::\n\n  @nki.jit\n  def sb_blocks(inp):\n"
        "    res = nl.ndarray((8, 128, 512), dtype=inp.dtype, buffer=nl.shared_hbm)\n"
        "    buf = nl.ndarray((8, nl.par_dim(128), 512), dtype=inp.dtype, buffer=nl.sbuf)\n"
        "    for i in range(8):\n"
        "      buf[i] = nl.load(inp[i])\n      nl.store(res[i], buf[i])\n    return res\n"
    )
    (outcome,) = outcomes_of(tmp_path, block)
    assert (outcome.generation, outcome.status, outcome.error) == ("Beta 1", "pass", 0.0)


def test_kernels_of_one_name_are_told_apart_by_their_number(tmp_path: Path) -> None:
    block = "::\n\n  @nki.jit\n  def kernel(x):\n    return x\n\nAnd\n\n"
    jax = "::\n\n  @jax.jit\n  def function(x):\n    return x\n"
    page = tmp_path / "page.rst"
    page.write_text(block + block + jax)
    found = [each.path for each in excerpts(page, "nki", tmp_path / "files")]
    assert [path and path.name for path in found] == ["page.rst", "page.rst:2"]


def test_a_block_ends_where_the_text_goes_on() -> None:
    text = "Text::\n\n    a = 1\n\n    b = 2\n\nMore.\n\n"
    text += ".. code:: python\n\n  c = 3\n.. note::\n\n  no\n"
    assert [(each.line, each.text.strip()) for each in blocks_of(text)] == [
        (3, "a = 1\n\nb = 2"),
        (11, "c = 3"),
    ]


def test_a_function_that_a_page_shows_as_a_kernel_needs_no_decorator(tmp_path: Path) -> None:
    (tmp_path / "nki-aps.rst").write_text(
        ".. code-block:: python\n\n"
        "   def scalar_dynamic_select(A):\n"
        "      index = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)\n"
        "      nisa.memset(index, value=3)\n"
        "      result = nl.ndarray((128, 512), A.dtype, buffer=nl.shared_hbm)\n"
        "      nisa.dma_copy(src=A.select(0, index), dst=result[...])\n"
        "      return result\n\n"
    )
    (tmp_path / "current.py").write_text("import nki\n\n@nki.jit\ndef kernel(x):\n    return x\n")
    found = {each.kernel: (each.status, each.error) for each in run_all(tmp_path)}
    assert found["scalar_dynamic_select"] == ("pass", 0.0)


def test_a_file_that_is_no_python_is_listed_with_its_kernels(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nki\n\n@nki.jit\ndef kernel(x):\n  return (x\n")
    (outcome,) = run_all(tmp_path)
    assert (outcome.file, outcome.kernel, outcome.status) == ("broken.py", "kernel", "explained")
    assert "never closed, line 5" in outcome.reason
