"""`glia conformance nki` runs what it finds and explains what fails."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from glia.cli.glia import main
from glia.conformance.errors import DropinMissing
from glia.conformance.load import require_dropin
from glia.conformance.run import find_files, process_lines, run_all, run_file

ADD = """
import torch
from {root} import nki
import {root}.nki.language as nl

device = torch.device("cpu")

@nki.jit
def nki_tensor_add_kernel(a_input, b_input):
    out = nl.ndarray(a_input.shape, dtype=a_input.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(a_input) {sign} nl.load(b_input))
    return out
"""
CURRENT = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def nki_tensor_add_kernel(a_input, b_input):
    a = nl.load(a_input)
    nisa.tensor_tensor(dst=a, data1=a, data2=nl.load(b_input), op=nl.add)
    out = nl.ndarray(a_input.shape, dtype=a_input.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=a)
    return out

@nki.jit
def no_one_knows(x):
    return x
"""
TESTS = """
import unittest
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit(mode="simulation")
def twice(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 2)
    return out

class TestTwice(unittest.TestCase):
    def test_twice(self):
        x = np.ones((4, 4), np.float32)
        self.assertTrue(np.allclose(twice(x), x * 2))
        self.assertFalse(np.allclose(twice(x), x * 9))  # whose difference is no error

    def test_thrice(self):
        x = np.ones((4, 4), np.float32)
        self.assertTrue(np.allclose(twice(x), x * 3))
"""

INNER = """
from neuronxcc import nki
import neuronxcc.nki.language as nl

@nki.jit
def inner(x):
    return nl.load(x) * 2

@nki.jit
def outer(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, inner(x))
    return out
"""
SCRIPT = """
import sys
import numpy as np
from kernels import outer

if __name__ == "__main__":
    x = np.ones((4, 4), np.float32)
    print("close" if np.allclose(outer(x), x * {factor}) else "far", sys.argv[1:])
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "add.py").write_text(ADD.format(root="neuronxcc", sign="+"))
    (tmp_path / "current.py").write_text(CURRENT)
    (tmp_path / "plain.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["conformance", "nki", *arguments])


def test_kernels_of_both_generations_run_and_agree_with_numpy(clone: Path) -> None:
    result = invoke("--repo", str(clone), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    seen = {(k["file"], k["kernel"]): (k["generation"], k["status"]) for k in found["kernels"]}
    assert seen == {
        ("add.py", "nki_tensor_add_kernel"): ("Beta 1", "pass"),
        ("current.py", "nki_tensor_add_kernel"): ("current", "pass"),
        ("current.py", "no_one_knows"): ("current", "not run"),
    }
    assert found["counts"] == {"pass": 2, "not run": 1}


def test_a_kernel_that_computes_something_else_fails(clone: Path) -> None:
    (clone / "add.py").write_text(ADD.format(root="neuronxcc", sign="-"))
    result = invoke("--repo", str(clone), "--only", "add.py")
    assert result.exit_code == 1
    assert "GLIA209" in result.output
    assert "differs from NumPy" in result.output


def test_files_of_tests_run_their_tests(tmp_path: Path) -> None:
    path = tmp_path / "test_twice.py"
    path.write_text(TESTS)
    assert find_files(tmp_path) == [path]
    passed, failed, kernel = run_file(path)
    assert (passed.kernel, passed.status, passed.error) == ("TestTwice.test_twice", "pass", 0.0)
    assert failed.status == "fail"
    assert "False is not true" in failed.reason
    assert (kernel.kernel, kernel.status) == ("twice", "not run")  # until all is known
    assert {each.kernel: each.status for each in run_all(tmp_path)}["twice"] == "pass"


def test_kernels_that_a_script_runs_pass_with_it(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(INNER)
    (tmp_path / "compare.py").write_text(SCRIPT.format(factor=2))
    found = {each.kernel: each for each in run_all(tmp_path)}
    assert {name: each.status for name, each in found.items()} == {
        "as a script": "pass",
        "inner": "pass",
        "outer": "pass",
    }
    assert found["inner"].reason == "run by compare.py as a script"


def test_a_function_that_its_file_makes_a_kernel_is_listed(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(
        INNER.replace("@nki.jit\ndef outer", "def outer") + "\nmeasured = nki.baremetal()(outer)\n"
    )
    (tmp_path / "compare.py").write_text(
        SCRIPT.format(factor=2).replace("import outer", "import measured as outer")
    )
    found = {each.kernel: each.status for each in run_all(tmp_path)}
    assert found == {"as a script": "pass", "inner": "pass", "outer": "pass"}


def test_a_script_whose_comparison_says_no_fails_and_its_kernels_are_not_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "kernels.py").write_text(INNER)
    (tmp_path / "compare.py").write_text(SCRIPT.format(factor=3))
    found = {each.kernel: each for each in run_all(tmp_path)}
    assert (found["as a script"].status, found["as a script"].error) == ("fail", 0.25)
    assert found["inner"].status == found["outer"].status == "not run"


def test_what_a_file_lacks_and_what_takes_too_long_are_not_failures(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(INNER)
    start = 'import kernels\n\nif __name__ == "__main__":\n    '
    (tmp_path / "lacks.py").write_text(f"{start}import no_such_package\n")
    (tmp_path / "sleeps.py").write_text(f"{start}import time\n    time.sleep(600)\n")
    (tmp_path / "breaks.py").write_text(f"{start}import os\n    os._exit(3)\n")
    found = {each.file: each for each in run_all(tmp_path, seconds=8) if "kernels" not in each.file}
    assert {name: (each.status, each.reason) for name, each in found.items()} == {
        "breaks.py": ("fail", "exited with status 3 without a message"),
        "lacks.py": ("not run", "needs the package no_such_package"),
        "sleeps.py": ("not run", "stopped after 8 seconds"),
    }


def test_what_takes_too_long_or_ends_the_process_does_not_keep_others_from_running(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_long.py").write_text(
        "import os\nimport time\nimport pytest\nfrom neuronxcc import nki\n\n"
        "def test_first():\n    pass\n\n"
        "@pytest.mark.parametrize('seconds', [600, 0])\n"
        "def test_long(seconds):\n    time.sleep(seconds)\n\n"
        "def test_end():\n    os._exit(3)\n\n"
        "def test_last():\n    pass\n"
    )
    assert [(each.kernel, each.status, each.reason) for each in run_all(tmp_path, seconds=8)] == [
        ("test_first", "pass", ""),
        ("test_long[600]", "not run", "stopped after 8 seconds"),
        ("test_long[0]", "pass", ""),
        ("test_end", "fail", "exited with status 3 without a message"),
        ("test_last", "pass", ""),
    ]


def test_a_file_that_calls_its_own_test_is_a_script(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(INNER)
    (tmp_path / "test_call.py").write_text(
        "import numpy as np\nfrom kernels import outer\n\n"
        "def test_call(factor):\n"
        "    x = np.ones((4, 4), np.float32)\n"
        "    assert np.allclose(outer(x), x * factor)\n\n"
        "test_call(2)\n"
    )
    found = {each.kernel: each.status for each in run_all(tmp_path)}
    assert found == {"as a script": "pass", "inner": "pass", "outer": "pass"}


def test_what_a_clone_lacks_is_named(tmp_path: Path) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "test_lost.py").write_text(
        "from neuronxcc import nki\nimport own_package\n"
        "from own_package.lost import kernel\n\ndef test_lost():\n    pass\n"
    )
    (tmp_path / "other.py").write_text(
        "from neuronxcc import nki\nfrom no_such_package import helper\n\n"
        "@nki.jit\ndef add_kernel(a, b):\n    return helper(a, b)\n"
    )
    assert {each.kernel: (each.status, each.reason) for each in run_all(tmp_path)} == {
        "test_lost": ("not run", "imports own_package.lost, which is not in this clone"),
        "add_kernel": ("not run", "needs the package no_such_package"),
    }


def test_parameters_and_fixtures_of_pytest_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "test_parameters.py"
    path.write_text(
        "import pytest\nfrom neuronxcc import nki\n\n"
        "def test_perf():\n    pass\n\n"
        "@pytest.mark.parametrize('a, b', [(1, 2), pytest.param(3, 4)])\n"
        "@pytest.mark.parametrize('c', [5, 6])\n"
        "def test_sum(a, b, c):\n    assert a + b + c != 12\n\n"
        "def test_fixture(tmp_path):\n    pass\n\n"
        "ended = []\n\n"
        "@pytest.fixture\ndef two():\n    yield 2\n    ended.append(2)\n\n"
        "class TestThree:\n"
        "    @pytest.fixture\n    def three(self, two):\n        return two + 1\n\n"
        "    def test_three(self, three):\n        assert (three, ended) == (3, [])\n\n"
        "def test_the_end():\n    assert ended == [2]\n\n"
        "def test_skipped():\n    pytest.skip('no device')\n"
    )
    found = [(each.kernel, each.status, each.reason) for each in run_file(path)]
    assert found == [
        ("test_sum[5, 1, 2]", "pass", ""),
        ("test_sum[5, 3, 4]", "fail", "AssertionError: "),
        ("test_sum[6, 1, 2]", "pass", ""),
        ("test_sum[6, 3, 4]", "pass", ""),
        ("test_fixture", "not run", "needs the fixture tmp_path"),
        ("TestThree.test_three", "pass", ""),
        ("test_the_end", "pass", ""),
        ("test_skipped", "not run", "skips itself: no device"),
        ("test_perf", "pass", ""),  # a measurement, and so the last
    ]


@pytest.mark.parametrize(
    ("parameters", "status"),
    [("a, b, out", "pass"), ("a, b, epsilon", "not run"), ("a, b, out, more", "not run")],
)
def test_results_may_be_parameters_but_nothing_else_is_guessed(
    tmp_path: Path, parameters: str, status: str
) -> None:
    path = tmp_path / "add.py"
    path.write_text(
        "from neuronxcc import nki\nimport neuronxcc.nki.language as nl\n\n"
        f"@nki.trace\ndef add_kernel({parameters}):\n"
        "    nl.store(out, nl.load(a) + nl.load(b))\n"
    )
    (outcome,) = run_file(path)
    assert outcome.status == status


def test_a_failure_of_the_clone_itself_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "layout-violation.py"
    body = "out = nl.ndarray((256, 512), dtype=in_tensor.dtype)"
    text = "from neuronxcc import nki\nimport neuronxcc.nki.language as nl\n\n@nki.jit\n"
    path.write_text(f"{text}def tensor_exp_kernel_(in_tensor):\n    {body}\n    return out\n")
    (outcome,) = run_file(path)
    assert outcome.status == "explained"
    assert "128 partitions" in outcome.reason


def test_recipes_are_right_about_themselves() -> None:
    from glia.conformance.library_recipes import RECIPES

    for name, make in RECIPES.items():
        if "attn_fwd" in name:
            continue  # large, and computed by one function
        made = make(np.random.default_rng(1), "kernel.py")
        if made is None:
            continue  # for files of another name
        for trial in made if isinstance(made, tuple) else (made,):
            for each in trial.expected:
                assert not np.isinf(each).any(), name
                assert np.isnan(np.asarray(each, np.float64)).mean() < 0.1, name


def test_the_cpu_stands_in_for_an_xla_device_where_torch_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from torch_xla.core import xla_model as xm\n"
        "import torch_xla\n"
        "xm.mark_step(), torch_xla.sync()\n"
        "print(xm.xla_device(), torch_xla.device())\n"
    )
    run = "from glia.conformance.torch_xla import provide_xla; import runpy; provide_xla(); "
    run += f"runpy.run_path({str(script)!r})"

    def outcome() -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((*sys.path, str(tmp_path)))
        return subprocess.run(
            [sys.executable, "-c", run], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    if importlib.util.find_spec("torch") is None:
        assert "No module named 'torch_xla'" in outcome().stderr
    (tmp_path / "torch.py").write_text("def device(name): return f'device {name}'\n")
    assert outcome().stdout == "device cpu device cpu\n"


def test_scripts_run_on_the_device_of_native_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "kernels.py").write_text(INNER)
    (tmp_path / "native.py").write_text(
        "import torch\nfrom torch_neuronx import nki\nfrom kernels import outer\n\n"
        "if __name__ == '__main__':\n"
        "    x = torch.ones((4, 4), device='neuron')\n"
        "    assert torch.allclose(outer(x.to('neuron')), x * 2)\n"
    )
    found = {each.kernel: each.status for each in run_all(tmp_path)}
    assert found == {"as a script": "pass", "inner": "pass", "outer": "pass"}


def test_conformance_needs_the_names_of_the_drop_in(monkeypatch: pytest.MonkeyPatch) -> None:
    require_dropin()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "nki" else find_spec(name)
    )
    with pytest.raises(DropinMissing, match="nki is not glia-dropin's"):
        require_dropin()


def test_a_time_limit_counts_waiting_and_computing_but_not_the_queue_for_a_processor() -> None:
    computing = "import time\nprint(1, flush=True)\nwhile time.process_time() < 60: pass"
    for code in ("print(1, flush=True); import time; time.sleep(60)", computing):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            lines = process_lines(process, 0.6)
            assert next(lines) == b"1\n"
            with pytest.raises(queue.Empty):
                next(lines)
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            process.kill()
        assert (used >= 0.6) == (code is computing)
