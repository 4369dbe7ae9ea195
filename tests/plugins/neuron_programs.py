"""Programs of JAX on the platform `neuron`, each a function; `answer` runs them in a process.

Each returns what JSON can hold. The process is of its own as JAX takes its platforms from the
environment, once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from glia import nki
from glia.nki import language as nl
from house.source import REPOSITORY
from house.tour import blocks, printed

ENTRY_POINTS = "[jax_plugins]\nneuron = glia.plugins.jax\n"


def neuron_environment(directory: Path) -> dict[str, str]:
    """The environment of a process with JAX on `neuron`, discovered in a directory."""
    metadata = directory / "glia_discovered-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: glia-discovered\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join([str(directory), *filter(None, sys.path)])
    return {**os.environ, "JAX_PLATFORMS": "neuron,cpu", "PYTHONPATH": path}


class NeuronProcess:
    """A process with JAX on `neuron`, discovered as an installed plugin is."""

    def __init__(self, directory: Path, **environment: str) -> None:
        """`directory` is given the metadata that an installation of glia has."""
        command = [sys.executable, "-c", "from plugins.neuron_programs import answer; answer()"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**neuron_environment(directory), **environment},
        )

    def __call__(self, name: str) -> Any:
        """What a function of this module returns there; RuntimeError with what it raised."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process has ended: {self._process.wait()}")
        found = json.loads(line)
        if "raised" in found:
            raise RuntimeError(found["raised"])
        return found["returned"]

    def close(self) -> int:
        """End the process; its status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(120)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status


def answer() -> None:
    """Run the functions named on stdin, and write what they return."""
    for line in sys.stdin:
        try:
            found = {"returned": globals()[line.strip()]()}
        except Exception as error:
            found = {"raised": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


def devices() -> Any:
    import jax

    return [str(each) for each in jax.devices()] + [jax.devices()[0].device_kind]


def _x() -> Any:
    import numpy as np

    return np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def transformations() -> Any:
    """Largest differences to JAX on the CPU of jit, grad, vmap and scan."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w).sum()

    def scanned(x: Any) -> Any:
        return jax.lax.scan(lambda carry, row: (carry + row, carry * row), x[0], x)

    functions = {
        "jit": jax.jit(lambda x: jnp.exp(x) @ x.T),
        "grad": jax.grad(lambda x: loss(x.T, x)),
        "vmap": jax.vmap(lambda row: row / row.sum()),
        "scan": scanned,
        "bfloat16": lambda x: (jnp.asarray(x, jnp.bfloat16) * 2).astype(jnp.float32),
        "random bits": lambda x: jax.random.bits(jax.random.key(3), (4,)).astype(jnp.float32),
        "eager": lambda x: jnp.concatenate([x + 1, x * 2])[::2],
    }
    found = {}
    for name, function in functions.items():
        results = jax.tree.leaves(function(_x()))
        with jax.default_device(jax.devices("cpu")[0]):
            expected = jax.tree.leaves(function(_x()))
        assert all(each.devices() == {jax.devices()[0]} for each in results)
        pairs = zip(results, expected, strict=True)
        found[name] = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
    return found


def donation() -> Any:
    """Whether a donated array is deleted, the result, and what a second use raises."""
    import jax

    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    given = jax.device_put(_x())
    result = step(given)
    try:
        step(given)
    except ValueError as error:
        return given.is_deleted(), float(result.sum()), str(error)
    return None


def placement() -> Any:
    """Where results are when arguments are on the last device, and what moves there."""
    import jax

    last = jax.devices()[-1]
    moved = jax.device_put(jax.device_put(_x()), last)
    result = jax.jit(lambda x: x * 2)(moved)
    back = jax.device_put(result, jax.devices("cpu")[0])
    return result.devices() == {last}, float(back.sum()), last.memory_stats()["bytes_in_use"] > 0


def ahead_of_time() -> Any:
    """Costs, memory, text and result of a compiled function, and of its serialized form."""
    import jax
    from jax.experimental import serialize_executable

    compiled = jax.jit(lambda x: x @ x.T).lower(_x()).compile()
    memory = compiled.memory_analysis()
    device = [jax.devices()[0]]
    serialized = serialize_executable.serialize(compiled)
    again = serialize_executable.deserialize_and_load(*serialized, execution_devices=device)
    return {
        "flops": compiled.cost_analysis()["flops"],
        "seconds": compiled.cost_analysis()["optimal_seconds"],
        "memory": [memory.argument_size_in_bytes, memory.output_size_in_bytes],
        "dot": "dot" in compiled.as_text(),
        "same": bool((again(_x()) == compiled(_x())).all()),
    }


def wrong_option() -> Any:
    import jax

    return jax.jit(lambda x: x).lower(_x()).compile(compiler_options={"optlevl": 1})


def unknown_call() -> Any:
    """What a call that no compiler knows raises, and the line that makes it."""
    import jax

    def function(x: Any) -> Any:
        return jax.ffi.ffi_call("unheard", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    try:
        jax.jit(function)(_x())
    except jax.errors.JaxRuntimeError as error:
        return str(error), function.__code__.co_firstlineno + 1
    return None


def persistent_cache() -> Any:
    """Files of JAX's cache on disk: one compilation, the same again, with other flags."""
    from unittest import mock

    import jax
    from jax.experimental.compilation_cache import compilation_cache

    with tempfile.TemporaryDirectory() as directory:
        jax.config.update("jax_compilation_cache_dir", directory)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        first = jax.jit(lambda x: x * 5 - 1)(_x())
        files = len(list(Path(directory).iterdir()))
        jax.clear_caches()
        second = jax.jit(lambda x: x * 5 - 1)(_x())
        after = len(list(Path(directory).iterdir()))
        jax.clear_caches()
        with mock.patch.dict(os.environ, {"NEURON_CC_FLAGS": "--auto-cast all"}):
            jax.jit(lambda x: x * 5 - 1)(_x())
        others = len(list(Path(directory).iterdir()))
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
        return files, after, others, bool((first == second).all())


def compile_cache() -> Any:
    """Compilations that found their program in glia's cache on disk, of two of one function."""
    import logging
    from unittest import mock

    import jax

    function = lambda x: x * 7 + 3  # noqa: E731
    with tempfile.TemporaryDirectory() as directory:
        with mock.patch.dict(os.environ, NEURON_COMPILE_CACHE_URL=directory):
            stream = io.StringIO()
            handler, logger = logging.StreamHandler(stream), logging.getLogger("glia.cache")
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            for _ in range(2):
                jax.clear_caches()
                result = jax.jit(function)(_x())
            logger.removeHandler(handler)
        entries = len(list(Path(directory).glob("neuronxcc-*/MODULE_*")))
        return (
            entries,
            stream.getvalue().count("using the cached"),
            bool((result == _x() * 7 + 3).all()),
        )


def threads() -> Any:
    """How many of many calls from several threads have the right result."""
    import jax
    import numpy as np

    function = jax.jit(lambda x: x * 2 + 1)
    right: list[int] = []

    def work(number: int) -> None:
        for step in range(20):
            found = np.asarray(function(np.full((8,), number * 100 + step, np.float32)))
            right.append(int((found == 2 * (number * 100 + step) + 1).all()))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return sum(right)


def memory_returns() -> Any:
    """Bytes in use before and after arrays live, also those that end while an error passes."""
    import jax

    device = jax.devices()[0]
    before = device.memory_stats()["bytes_in_use"]
    many = [jax.device_put(_x(), device) for _ in range(50)]
    during = device.memory_stats()["bytes_in_use"]
    del many

    def fails() -> None:
        kept = jax.device_put(_x(), device)
        raise ValueError(kept.shape)

    for _ in range(50):
        with contextlib.suppress(ValueError):
            fails()
    return during - before, device.memory_stats()["bytes_in_use"] - before


def callbacks() -> Any:
    import jax

    def function(x: Any) -> Any:
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    return str(jax.jit(function)(_x()))


def independent_devices() -> Any:
    """Differences and shardings of pmap, sharded jit and shard_map without exchange."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rows = np.arange(32, dtype=np.float32).reshape(8, 4)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    by_rows = NamedSharding(mesh, PartitionSpec("d"))
    divided = jax.device_put(rows, by_rows)
    mapped = jax.shard_map(
        lambda x: x - x.mean(), mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d")
    )
    pairs = {
        "pmap": (jax.pmap(lambda x: x * 2)(rows[:4]), rows[:4] * 2),
        "jit": (jax.jit(lambda x: (x + 1).sum(1))(divided), (rows + 1).sum(1)),
        "shard_map": (
            jax.jit(mapped)(rows),
            (rows.reshape(4, -1) - rows.reshape(4, -1).mean(1, keepdims=True)).reshape(8, 4),
        ),
    }
    far = {name: float(np.abs(np.asarray(a) - b).max()) for name, (a, b) in pairs.items()}
    return far, list(pairs["jit"][0].sharding.spec), len(pairs["jit"][0].devices())


def exchanges() -> Any:
    """Differences to NumPy of collectives under pmap, shard_map and sharded jit."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    split, whole = PartitionSpec("d"), PartitionSpec()
    ring = [(i, (i + 1) % 4) for i in range(4)]

    def mapped(function: Any, out: Any) -> Any:
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=out))

    def by_tensor_parallel(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) @ w.T

    weights = jax.device_put(w, NamedSharding(mesh, PartitionSpec(None, "d")))
    blocks = x.reshape(4, 2, 4)
    pairs = {
        "pmap": (jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(x[:4]),
                 np.tile(x[:4].sum(0), (4, 1))),
        "sum": (mapped(lambda x: jax.lax.psum(x, "d"), whole)(x), blocks.sum(0)),
        "ring": (mapped(lambda x: jax.lax.ppermute(x, "d", ring), split)(x),
                 np.roll(blocks, 1, 0).reshape(8, 4)),
        "index": (mapped(lambda x: x * 0 + jax.lax.axis_index("d"), split)(x),
                  np.repeat(np.arange(4.0), 2)[:, None] * np.ones((1, 4))),
        "sharded": (jax.jit(by_tensor_parallel)(x, weights), np.tanh(x @ w) @ w.T),
        "gradient": (jax.jit(jax.grad(lambda w, x: by_tensor_parallel(x, w).sum()))(weights, x),
                     np.asarray(jax.grad(lambda w, x: by_tensor_parallel(x, w).sum())(w, x))),
    }  # fmt: skip
    return {name: float(np.abs(np.asarray(a) - b).max()) for name, (a, b) in pairs.items()}


def profiled() -> Any:
    """Lines of the devices in a trace of JAX's profiler; the programs, and how long they take."""
    import jax
    import jax.numpy as jnp
    from jax.profiler import ProfileData

    function = jax.jit(lambda x: jnp.tanh(x @ x.T) @ x)
    expected = function.lower(_x()).compile().cost_analysis()["optimal_seconds"] * 1e9
    function(_x())
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            for place in (0, 0, 1):
                function(jax.device_put(_x(), jax.devices()[place]))
        (path,) = Path(directory).rglob("*.xplane.pb")
        planes = ProfileData.from_file(str(path)).planes
        found = {
            plane.name: {
                line.name: [
                    (event.name, event.start_ns, event.duration_ns) for event in line.events
                ]
                for line in plane.lines
            }
            for plane in planes
            if "NEURON" in plane.name
        }
    function(_x())
    return found, expected


def rows_of_divided_arrays() -> Any:
    """Rows that one device of several has, and warnings; then those of a wrong index."""
    import warnings

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("d",))
    y = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("d")))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rows = [float(y[0]), float(y[7]), float(y[jnp.array([3])][0])]
        count = len(said)
        jnp.zeros(5).at[jnp.array([7])].set(1.0).block_until_ready()
    return rows, count, len(said) - count


def collected() -> Any:
    """Results of two programs that are only collected, what keeping one raises, and then of one."""
    from unittest import mock

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import serialize_executable

    from glia.cache.store import CompileCache
    from glia.compiler import compile_collected

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tempfile.TemporaryDirectory() as directory:
        cache = CompileCache(Path(directory))
        here = {"NEURON_COMPILE_CACHE_URL": directory}
        with mock.patch.dict(os.environ, {**here, "NEURON_EXTRACT_GRAPHS_ONLY": "1"}):
            first = jax.jit(lambda a: a @ a.T)
            product, signs = first(x), jax.jit(lambda a: (a > 1, a.astype(jnp.bfloat16)))(x)
            zeros = [(str(each.dtype), float(abs(each).max())) for each in (product, *signs)]
            try:
                serialize_executable.serialize(first.lower(x).compile())
            except jax.errors.JaxRuntimeError as error:
                problem = str(error)
        places = cache.collected()
        for place in places:
            compile_collected(place)
        jax.clear_caches()
        refusing = mock.Mock(side_effect=AssertionError("compiled"))
        with (
            mock.patch.dict(os.environ, here),
            mock.patch("glia.compiler.compile_graph", refusing),
        ):
            far = float(np.abs(np.asarray(jax.jit(lambda a: a @ a.T)(x)) - x @ x.T).max())
    return zeros, problem, len(places), far


def on_cpu() -> Any:
    """Differences of programs without collectives and others, and which ran on the device."""
    from unittest import mock

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import serialize_executable
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from glia.plugins.pjrt.programs import DeviceProgram

    x = np.random.default_rng(3).standard_normal((8, 4)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    divided = jax.device_put(x, NamedSharding(mesh, PartitionSpec("d")))
    counts = []
    run = DeviceProgram.run_on_devices

    def counted(program: DeviceProgram, arguments: Any) -> Any:
        counts.append(program.name)
        return run(program, arguments)

    step = jax.jit(lambda w, g: (w - g, (w * g).sum()), donate_argnums=0)
    with (
        mock.patch.dict(os.environ, {"NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU": "1"}),
        mock.patch.object(DeviceProgram, "run_on_devices", counted),
    ):
        weights = jax.device_put(x)
        updated, total = step(weights, 2 * x)
        kept = serialize_executable.serialize(jax.jit(lambda a: a @ a.T).lower(x).compile())
        load = serialize_executable.deserialize_and_load
        product = load(*kept, execution_devices=jax.devices()[:1])(x)
        half = jax.jit(lambda a: a.astype(jnp.bfloat16) > 0)(x)
        before = len(counts)
        whole = jax.jit(lambda a: a.max(0))(divided)
        doubled = jax.jit(_double)(x)
    pairs = {
        "update": (updated, x - 2 * x),
        "total": (total, (x * 2 * x).sum()),
        "product": (product, x @ x.T),
        "half": (half, x > 0),
        "divided": (whole, x.max(0)),
        "kernel": (doubled, 2 * x),
    }
    far = {name: float(np.abs(np.asarray(a) * 1 - b * 1).max()) for name, (a, b) in pairs.items()}
    return far, before, len(counts), weights.is_deleted(), str(updated.device)


def reductions() -> Any:
    """Reductions along divided dimensions that differ from those of the whole arrays."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    random = np.random.default_rng(2)
    x = random.standard_normal((8, 4)).astype(np.float32)
    rows = np.array([1, 3, 3, 0, 7, 6, 2, 2], np.int32)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))

    def greatest_with_place(x: Any) -> Any:
        places = jnp.broadcast_to(jnp.arange(8.0)[:, None], x.shape)

        def greater(one: Any, other: Any) -> Any:
            return jnp.maximum(one[0], other[0]), jnp.where(one[0] >= other[0], one[1], other[1])

        return lax.reduce((x, places), (np.float32(-9), np.float32(0)), greater, (0,))

    def windows(x: Any) -> Any:
        """A convolution whose image and kernel may both be divided along windows, and gradients."""
        images = jnp.tile(x[None, :, :, None], (2, 1, 2, 4))

        def loss(image: Any, kernel: Any) -> Any:
            names = ("NHWC", "HWIO", "NHWC")
            y = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=names)
            return (y * y).sum()

        return jax.value_and_grad(loss, (0, 1))(images, images[0, :4, :4, :, None] * jnp.ones(3))

    functions = {
        "windows": lambda x, i: windows(x),
        "greatest": lambda x, i: (lax.approx_max_k(x, 2), lax.top_k(x.T, 2)),
        "max": lambda x, i: x.max(0),
        "min of all": lambda x, i: (x.min(), x.min(1), (2 * x).max((0, 1))),
        "prod": lambda x, i: x.prod(0),
        "argmax": lambda x, i: jnp.argmax(x, 0),
        "bits": lambda x, i: (lax.reduce_or(i, (0,)), lax.reduce_xor(i, (0,))),
        "logaddexp": lambda x, i: jnp.logaddexp.reduce(x, 0),
        "softmax": lambda x, i: jax.nn.softmax(100 * x, 0),
        "gradient": lambda x, i: jax.grad(lambda x: (x.max(0) ** 2).sum())(x),
        "pairs": lambda x, i: greatest_with_place(x),
        "sums": lambda x, i: (x.sum(0), x.var(0), (x > 0).any(0), (x > -1).all()),
        "in a loop": lambda x, i: lax.fori_loop(0, 3, lambda _, y: y / 2 + y.max(0), x),
        "scatters": lambda x, i: (jax.ops.segment_max(x, i, 8), jnp.ones((8, 4)).at[i].mul(x)),
        "quantized": lambda x, i: jnp.round(x / jnp.abs(x).max(0) * 127).astype(jnp.int8),
    }
    wrong = []
    for name, function in functions.items():
        wanted = jax.tree.leaves(jax.jit(function, device=jax.devices("cpu")[0])(x, rows))
        for spec in (("a",), ("a", "b"), (("a", "b"),), (None, "b")):
            by = (
                NamedSharding(mesh, PartitionSpec(*spec)),
                NamedSharding(mesh, PartitionSpec(*spec[:1])),
            )
            found = jax.tree.leaves(jax.jit(function)(*map(jax.device_put, (x, rows), by)))
            pairs = zip(map(np.asarray, found), map(np.asarray, wanted), strict=True)
            if not all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs):
                wrong.append(f"{name} {spec}")
    return wrong


def decompositions() -> Any:
    """Largest differences to NumPy of QR, of a batch and of a gradient through it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    found = {}
    for shape in ((4, 4), (5, 3), (2, 4, 3)):
        a = random.standard_normal(shape).astype(np.float32)
        for one, other in zip(jnp.linalg.qr(a), np.linalg.qr(a), strict=True):
            found[f"{shape} {one.shape}"] = float(np.abs(np.asarray(one) - other).max())
    with jax.numpy_dtype_promotion("strict"):
        zeros = np.asarray(jnp.linalg.qr(np.zeros((3, 3), np.float32))[0])
    found["zeros"] = float(np.abs(zeros - np.eye(3)).max())
    a = random.standard_normal((3, 3)).astype(np.float32)
    gradient = jax.grad(lambda a: (jnp.linalg.qr(a)[1] ** 2).sum())(a)
    found["gradient"] = float(np.abs(np.asarray(gradient) - 2 * a).max())  # |R| = |A|
    return found


def factors() -> Any:
    """How far the product of the factors of QR, in a jitted function, is from the array."""
    import jax
    import jax.numpy as jnp

    def product(x: Any) -> Any:
        q, r = jnp.linalg.qr(x)
        return q @ r

    return float(abs(jax.jit(product)(_x()[:, :2]) - _x()[:, :2]).max())


def kernels() -> Any:
    """Largest differences of a kernel under jit, vmap, grad, scan, shard_map and pmap."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    split = PartitionSpec("d")

    @jax.custom_vjp
    def doubled(a: Any) -> Any:
        return _double(a)

    doubled.defvjp(lambda a: (_double(a), None), lambda _, given: (_double(given),))

    def mapped(function: Any) -> Any:
        return jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=split)

    def twice_doubled(a: Any) -> Any:
        return jax.lax.scan(lambda c, _: (_double(c), None), a, None, length=2)[0]

    divided = jax.device_put(x, NamedSharding(mesh, PartitionSpec("d")))
    pairs = {
        "divided": (jax.jit(lambda a: _reversed_rows(a + 1) * 2)(divided), 2 * x[::-1] + 2),
        "grad of shard_map": (jax.grad(lambda a: mapped(doubled)(a).sum())(x), np.full_like(x, 2)),
        "grad in shard_map": (mapped(jax.grad(lambda a: doubled(a).sum()))(x), np.full_like(x, 2)),
        "scan in shard_map": (jax.jit(mapped(twice_doubled))(x), 4 * x),
        "jit": (jax.jit(lambda a: _double(a) + 1)(x), 2 * x + 1),
        "vmap": (jax.jit(jax.vmap(_double))(np.stack([x, x + 1])), np.stack([2 * x, 2 * x + 2])),
        "grad": (jax.jit(jax.grad(lambda a: doubled(a).sum()))(x), np.full_like(x, 2)),
        "shard_map": (jax.jit(mapped(_double))(x), 2 * x),
        "pmap": (jax.pmap(_double)(x[:4, None]), 2 * x[:4, None]),
    }
    return {name: float(np.abs(np.asarray(a) - b).max()) for name, (a, b) in pairs.items()}


def unequal_shards() -> Any:
    """A kernel's results, which differ by device, given as one result of all."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec

    mesh, whole = Mesh(np.array(jax.devices()), ("d",)), PartitionSpec()
    mapped = jax.shard_map(_double, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=whole)
    return np.asarray(jax.jit(mapped)(np.ones((8, 4), np.float32))).tolist()


@nki.jit
def _reversed_rows(x: Any) -> Any:
    """Needs all rows: a part of them gives others."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(x.shape[0]):
        nl.store(out[row], nl.load(x[x.shape[0] - 1 - row]))
    return out


@nki.jit
def _double(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), 2.0))
    return out


def document() -> Any:
    """What each piece of code in docs/jax.md prints, and what the page shows."""
    variables: dict[str, object] = {"__name__": "jax.md"}
    text = (REPOSITORY / "docs" / "jax.md").read_text(encoding="utf-8")
    return [(printed(block, "jax.md", variables), block.shown or "") for block in blocks(text)]
