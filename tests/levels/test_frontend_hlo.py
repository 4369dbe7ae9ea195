"""What the HLO importer does with modules: containers, names, tuples, calls, custom calls."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from glia.frontend.hlo import IMPORTERS, import_hlo, operators
from glia.frontend.hlo_import.hlo_proto import messages
from glia.frontend.registry import read_module
from glia.graph import ops
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph
from support.hlo_text import adding_module, entry, from_text, module, vector

Array = np.ndarray


def _run(data: bytes, *arrays: Array) -> list[Array]:
    return evaluate(import_hlo(data), list(arrays))


def _with_config(text: str, config: bytes) -> bytes:
    """The module with this backend_config on its custom call."""
    message = module(entry(text))
    for instruction in message.computations[-1].instructions:
        if instruction.opcode == "custom-call":
            instruction.backend_config = config
    return message.SerializeToString()


# Containers


@pytest.mark.parametrize("wrap", [lambda b: b, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", ["Module", "Hlo"])
def test_module_is_read_in_every_container(kind: str, wrap, tmp_path: Path) -> None:
    message = adding_module()
    if kind == "Hlo":
        message = messages()["Hlo"](hlo_module=message)
    path = tmp_path / "model.pb"
    path.write_bytes(wrap(message.SerializeToString()))
    (found,) = evaluate(read_module(path), [vector(1, 2, 3, 4)])
    np.testing.assert_array_equal(found, vector(2, 4, 6, 8))


def test_entry_computation_is_found_by_name_when_its_id_is_missing() -> None:
    message = adding_module()
    message.computations[0].id = 77
    assert import_hlo(message.SerializeToString()).name == "test"


# Names, tuples, aliases, locations


def test_default_names_count_inputs_and_outputs() -> None:
    graph = import_hlo(
        entry("""
        x = f32[4] parameter(0)
        y = (f32[4], (f32[2], f32[])) parameter(1)
        z = (f32[2], f32[]) get-tuple-element(y), index=1
        ROOT r = ((f32[2], f32[]), f32[4]) tuple(z, x)""")
    )
    assert [p.name for p in graph.parameters] == ["input0", "input1", "input2", "input3"]
    assert [p.shape for p in graph.parameters] == [(4,), (4,), (2,), ()]
    assert graph.result_names == ("output0", "output1", "output2")
    assert graph.results == (graph.parameters[2], graph.parameters[3], graph.parameters[0])


def test_names_come_from_the_frontend_attributes() -> None:
    message = adding_module()
    for key, value in (("neff_input_names", "left"), ("neff_output_names", "sum")):
        message.frontend_attributes.map.add(key=key, value=value)
    graph = import_hlo(message.SerializeToString())
    assert graph.parameters[0].name == "left" and graph.result_names == ("sum",)


def test_aliases_are_flat_result_and_parameter_positions() -> None:
    message = module(
        entry("""
        x = f32[4] parameter(0)
        y = (f32[2], f32[]) parameter(1)
        a = f32[] get-tuple-element(y), index=1
        ROOT r = (f32[4], f32[]) tuple(x, a)""")
    )
    message.aliases.entries.add(output_index=[1], parameter_number=1, parameter_index=[1])
    assert import_hlo(message.SerializeToString()).aliases == ((1, 2),)


def test_location_comes_from_the_stack_frame_tables() -> None:
    message = adding_module()
    message.stack_frames.file_names.append("model.py")
    message.stack_frames.file_locations.add(file_name_id=1, line=42)
    message.stack_frames.stack_frames.add(file_location_id=1)
    message.computations[0].instructions[1].metadata.stack_frame_id = 1
    message.computations[0].instructions[1].metadata.op_name = "my/add"
    (result,) = import_hlo(message.SerializeToString()).results
    assert str(result.loc) == "model.py:42 (my/add)"


# Calls and control flow


def test_calls_are_inlined() -> None:
    graph = import_hlo(
        from_text("""HloModule m
        f { a = f32[4] parameter(0)  ROOT b = f32[4] negate(a) }
        ENTRY main { x = f32[4] parameter(0)  y = f32[4] call(x), to_apply=f
                     ROOT z = f32[4] call(y), to_apply=f }""")
    )
    assert [node.opcode for node in graph.nodes] == ["parameter", "map", "map"]


def test_map_applies_its_computation_to_every_element() -> None:
    (found,) = _run(from_text("""HloModule m
        f { a = f32[] parameter(0)  b = f32[] parameter(1)  c = f32[] constant(2)
            d = f32[] multiply(a, c)  ROOT e = f32[] add(d, b) }
        ENTRY main { x = f32[3] parameter(0)  y = f32[3] parameter(1)
                     ROOT z = f32[3] map(x, y), dimensions={0}, to_apply=f }"""),
        vector(1, 2, 3), vector(4, 5, 6))  # fmt: skip
    np.testing.assert_array_equal(found, vector(6, 9, 12))


def test_fusion_with_several_results_is_inlined() -> None:
    graph = import_hlo(
        from_text("""HloModule m
        f { a = f32[4] parameter(0)  b = f32[4] negate(a)  ROOT c = (f32[4], f32[4]) tuple(b, a) }
        ENTRY main { x = f32[4] parameter(0)
                     y = (f32[4], f32[4]) fusion(x), kind=kLoop, calls=f
                     ROOT z = f32[4] get-tuple-element(y), index=0 }""")
    )
    assert [node.opcode for node in graph.nodes] == ["parameter", "map"]


def test_reversed_convolution_window_is_a_reversed_kernel() -> None:
    x, kernel = vector(1, 2, 3, 4, 5).reshape(1, 1, 5), vector(1, 10, 100).reshape(1, 1, 3)
    text = """x = f32[1,1,5] parameter(0)
        k = f32[1,1,3] parameter(1)
        ROOT y = f32[1,1,3] convolution(x, k), window={size=3%s}, dim_labels=bf0_oi0->bf0"""
    (forward,) = _run(entry(text % ""), x, kernel[:, :, ::-1])
    (reversed_,) = _run(entry(text % " rhs_reversal=1"), x, kernel)
    np.testing.assert_array_equal(reversed_, forward)
    assert forward[0, 0, 0] == 123


def test_nested_tuple_state_of_a_loop_is_flattened() -> None:
    graph = import_hlo(
        from_text("""HloModule m
        body { s = (s32[], (f32[2], f32[2])) parameter(0)
               i = s32[] get-tuple-element(s), index=0
               p = (f32[2], f32[2]) get-tuple-element(s), index=1
               a = f32[2] get-tuple-element(p), index=0
               b = f32[2] get-tuple-element(p), index=1
               one = s32[] constant(1)
               j = s32[] add(i, one)
               c = f32[2] add(a, b)
               q = (f32[2], f32[2]) tuple(b, c)
               ROOT t = (s32[], (f32[2], f32[2])) tuple(j, q) }
        cond { s = (s32[], (f32[2], f32[2])) parameter(0)
               i = s32[] get-tuple-element(s), index=0
               n = s32[] constant(5)
               ROOT l = pred[] compare(i, n), direction=LT }
        ENTRY main { x = f32[2] parameter(0)  zero = s32[] constant(0)
               p = (f32[2], f32[2]) tuple(x, x)
               s = (s32[], (f32[2], f32[2])) tuple(zero, p)
               w = (s32[], (f32[2], f32[2])) while(s), condition=cond, body=body
               q = (f32[2], f32[2]) get-tuple-element(w), index=1
               ROOT r = f32[2] get-tuple-element(q), index=1 }""")
    )
    loop = next(node for node in graph.nodes if isinstance(node, ops.While))
    assert len(loop.state) == 3
    (found,) = evaluate(graph, [vector(1, 10)])
    np.testing.assert_array_equal(found, vector(13, 130))


def test_operations_that_only_order_or_copy_vanish() -> None:
    graph = import_hlo(
        entry("""
        x = f32[4] parameter(0)
        c = f32[4] copy(x)
        t = token[] after-all()
        d = f32[4] add-dependency(c, t)
        b = (f32[4], f32[4]) tuple(d, x)
        o = (f32[4], f32[4]) opt-barrier(b)
        s = (f32[4], f32[4], u32[]) copy-start(d)
        e = f32[4] copy-done(s)
        ROOT r = (f32[4], f32[4]) tuple(e, d)""")
    )
    assert graph.results == (graph.parameters[0],) * 2


def test_asynchronous_pair_is_its_computation() -> None:
    (found,) = _run(from_text("""HloModule m
        f { a = f32[4] parameter(0)  ROOT b = f32[4] negate(a) }
        ENTRY main { x = f32[4] parameter(0)
            s = ((f32[4]), f32[4], s32[]) async-start(x), calls=f
            u = ((f32[4]), f32[4], s32[]) async-update(s)
            ROOT d = f32[4] async-done(u) }"""), vector(1, 2, 3, 4))  # fmt: skip
    np.testing.assert_array_equal(found, -vector(1, 2, 3, 4))


def test_bitcast_follows_the_layouts() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = _run(entry("""
        x = f32[2,3]{0,1} parameter(0)
        ROOT y = f32[3,2]{1,0} bitcast(x)"""), x)  # fmt: skip
    np.testing.assert_array_equal(found, x.T)


def test_old_vector_of_start_indices_is_taken_apart() -> None:
    message = module(
        entry("""
        x = f32[4,5] parameter(0)
        i = s32[] parameter(1)
        ROOT y = f32[2,2] dynamic-slice(x, i, i), dynamic_slice_sizes={2,2}""")
    )
    start, sliced = message.computations[0].instructions[1:]
    start.shape.dimensions.append(2)
    start.shape.layout.minor_to_major.append(0)
    del sliced.operand_ids[2:]
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    (found,) = _run(message.SerializeToString(), x, np.array([1, 3], np.int32))
    np.testing.assert_array_equal(found, x[1:3, 3:5])


# Total order, collectives, random numbers


def test_total_order_comparison_tells_zeros_apart() -> None:
    (found,) = _run(entry("""
        x = f32[2] parameter(0)
        y = f32[2] parameter(1)
        ROOT r = pred[2] compare(x, y), direction=LT, type=TOTALORDER"""),
        vector(-0.0, 0.0), vector(0.0, -0.0))  # fmt: skip
    np.testing.assert_array_equal(found, [True, False])


def _collective(text: str) -> ops.Collective:
    graph = import_hlo(
        from_text(f"""HloModule m
        sum {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
        ENTRY main {{ x = f32[4] parameter(0)
        {text} }}""")
    )
    (found,) = (node for node in graph.nodes if isinstance(node, ops.Collective))
    return found


def test_collective_keeps_kind_groups_and_dimension() -> None:
    reduced = _collective(
        "ROOT r = f32[4] all-reduce(x), to_apply=sum, replica_groups={{0,1},{2,3}}"
    )
    assert reduced.kind == "all-reduce" and reduced.replica_groups == ((0, 1), (2, 3))
    assert len(reduced.body) == 1
    gathered = _collective("ROOT r = f32[8] all-gather(x), replica_groups={{0,1}}, dimensions={0}")
    assert gathered.kind == "all-gather" and gathered.dimension == 0
    permuted = _collective(
        "ROOT r = f32[4] collective-permute(x), source_target_pairs={{0,1},{1,0}}"
    )
    assert permuted.pairs == ((0, 1), (1, 0))


def test_iota_replica_groups_are_counted_out() -> None:
    found = _collective(
        "ROOT r = f32[4] all-reduce(x), replica_groups=[2,2]<=[2,2]T(1,0), to_apply=sum"
    )
    assert found.replica_groups == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        ("{'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("{'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("{'b','a'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("{'b':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
    ],
)
def test_mesh_replica_groups_are_written_out(axes: str, groups: object) -> None:
    mesh = "replica_groups=mesh['a'=2,'b'=4] " + axes
    reduced = _collective(f"ROOT r = f32[4] all-reduce(x), {mesh}, to_apply=sum")
    assert reduced.replica_groups == groups


def test_a_mesh_may_number_its_devices_by_a_transposition() -> None:
    mesh = "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}"
    reduced = _collective(f"ROOT r = f32[4] all-reduce(x), {mesh}, to_apply=sum")
    assert reduced.replica_groups == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_asynchronous_collective_gives_its_result() -> None:
    found = _collective("""
        s = (f32[4], f32[8]) all-gather-start(x), replica_groups={{0,1}}, dimensions={0}
        ROOT r = f32[8] all-gather-done(s)""")
    assert str(found.type) == "f32[8]"


def test_random_bits_keep_algorithm_and_type() -> None:
    graph = import_hlo(
        entry("""
        k = u64[2] parameter(0)
        r = (u64[2], u32[8]) rng-bit-generator(k), algorithm=rng_three_fry
        ROOT b = u32[8] get-tuple-element(r), index=1""")
    )
    (found,) = (node for node in graph.nodes if isinstance(node, ops.RngBits))
    assert found.algorithm == "three_fry" and str(found.result) == "u32[8]"


# Expansions


def _batch_norm_inputs() -> tuple[Array, ...]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((5, 3, 4)).astype(np.float32)
    vectors = generator.uniform(0.5, 2, (4, 3)).astype(np.float32)
    return x, *vectors


def _columns(vector_: Array) -> Array:
    return vector_[None, :, None]


def test_batch_norm_inference_matches_its_formula() -> None:
    x, scale, offset, mean, variance = _batch_norm_inputs()
    (found,) = _run(entry("""
        x = f32[5,3,4] parameter(0)
        s = f32[3] parameter(1)
        o = f32[3] parameter(2)
        m = f32[3] parameter(3)
        v = f32[3] parameter(4)
        ROOT r = f32[5,3,4] batch-norm-inference(x, s, o, m, v), epsilon=0.125, feature_index=1"""),
        x, scale, offset, mean, variance)  # fmt: skip
    normal = (x - _columns(mean)) / np.sqrt(_columns(variance) + 0.125)
    np.testing.assert_allclose(found, normal * _columns(scale) + _columns(offset), rtol=1e-5)


def test_batch_norm_training_gives_tensor_mean_and_variance() -> None:
    x, scale, offset, *_ = _batch_norm_inputs()
    found, mean, variance = _run(entry("""
        x = f32[5,3,4] parameter(0)
        s = f32[3] parameter(1)
        o = f32[3] parameter(2)
        ROOT r = (f32[5,3,4], f32[3], f32[3]) batch-norm-training(x, s, o), epsilon=0.125,
          feature_index=1"""), x, scale, offset)  # fmt: skip
    np.testing.assert_allclose(mean, x.mean((0, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, x.var((0, 2)), rtol=1e-5)
    normal = (x - _columns(mean)) / np.sqrt(_columns(variance) + 0.125)
    expected = normal * _columns(scale) + _columns(offset)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_batch_norm_gradient_matches_differences() -> None:
    x, scale, *_ = _batch_norm_inputs()
    grad = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)

    def loss(x64: Array, scale64: Array) -> float:
        mean, variance = x64.mean((0, 2)), x64.var((0, 2))
        normal = (x64 - _columns(mean)) / np.sqrt(_columns(variance) + 0.125)
        return float((normal * _columns(scale64) * grad).sum())

    grad_x, grad_scale, grad_offset = _run(entry("""
        x = f32[5,3,4] parameter(0)
        s = f32[3] parameter(1)
        m = f32[3] parameter(2)
        v = f32[3] parameter(3)
        g = f32[5,3,4] parameter(4)
        ROOT r = (f32[5,3,4], f32[3], f32[3]) batch-norm-grad(x, s, m, v, g), epsilon=0.125,
          feature_index=1"""), x, scale, x.mean((0, 2)), x.var((0, 2)), grad)  # fmt: skip
    np.testing.assert_allclose(grad_offset, grad.sum((0, 2)), rtol=1e-4, atol=1e-5)
    wide, wide_scale, step = x.astype(np.float64), scale.astype(np.float64), 1e-5
    moved = wide.copy()
    moved[2, 1, 3] += step
    slope = (loss(moved, wide_scale) - loss(wide, wide_scale)) / step
    np.testing.assert_allclose(grad_x[2, 1, 3], slope, rtol=1e-3, atol=1e-4)
    bigger = wide_scale + np.array([0, step, 0])
    slope = (loss(wide, bigger) - loss(wide, wide_scale)) / step
    np.testing.assert_allclose(grad_scale[1], slope, rtol=1e-3, atol=1e-4)


def _custom(target: str, result: str, config: bytes, *arrays: Array) -> list[Array]:
    shapes = [f"f32[{','.join(map(str, array.shape))}]" for array in arrays]
    lines = [f"p{i} = {shape} parameter({i})" for i, shape in enumerate(shapes)]
    names = ", ".join(f"p{i}" for i in range(len(arrays)))
    lines.append(f'ROOT r = {result} custom-call({names}), custom_call_target="{target}"')
    return _run(_with_config("\n".join(lines), config), *arrays)


X = np.random.default_rng(5).standard_normal((3, 7)).astype(np.float32)


@pytest.mark.parametrize(
    ("target", "formula"),
    [
        ("AwsNeuronErf", lambda x: math.erf(x)),
        ("AwsNeuronGelu", lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2)))),
        ("AwsNeuronSilu", lambda x: x / (1 + math.exp(-x))),
        (
            "AwsNeuronGeluApprxTanh",
            lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        ("AwsNeuronTransferWithStaticRing", lambda x: x),
        ("Sharding", lambda x: x),
    ],
)
def test_activation_custom_call_is_its_formula(target: str, formula) -> None:
    (found,) = _custom(target, "f32[3,7]", b"", X)
    np.testing.assert_allclose(found, np.vectorize(formula)(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dimension", [0, 1, -1])
def test_softmax_custom_call_normalises_its_dimension(dimension: int) -> None:
    (found,) = _custom("AwsNeuronSoftmax", "f32[3,7]", str(dimension).encode(), X)
    power = np.exp(X - X.max(dimension, keepdims=True))
    np.testing.assert_allclose(found, power / power.sum(dimension, keepdims=True), rtol=1e-5)


def test_rms_norm_custom_call_takes_weight_and_epsilon() -> None:
    weight, epsilon = vector(*range(1, 8)), np.array(0.5, np.float32)
    (found,) = _custom("AwsNeuronRmsNorm", "f32[3,7]", b"1", X, weight, epsilon)
    expected = X / np.sqrt((X * X).mean(1, keepdims=True) + 0.5) * weight
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_arg_max_and_arg_min_custom_calls_give_the_first_index() -> None:
    x = np.array([[1, 5, 5, 0], [3, -2, 1, -2]], np.float32)
    assert _custom("AwsNeuronArgMax", "u32[2]", b"1", x)[0].tolist() == [1, 0]
    assert _custom("AwsNeuronArgMin", "u32[2]", b"1", x)[0].tolist() == [3, 1]
    lowest = np.full((1, 3), -np.inf, np.float32)
    assert _custom("AwsNeuronArgMax", "u32[1]", b"1", lowest)[0].tolist() == [0]


def test_top_k_custom_call_sorts_the_last_dimension() -> None:
    values, indices = _custom("AwsNeuronTopK", "(f32[3,2], s32[3,2])", b"2", X)
    expected = np.argsort(-X, axis=1, kind="stable")[:, :2]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(X, expected, 1))


def test_resize_custom_calls_scale_images() -> None:
    image = np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1)
    (near,) = _custom("ResizeNearest", "f32[1,4,4,1]", b'"00"', image)
    np.testing.assert_array_equal(near[0, :, :, 0], image[0, :, :, 0].repeat(2, 0).repeat(2, 1))
    (linear,) = _custom("ResizeBilinear", "f32[1,3,3,1]", b'"10"', image)
    np.testing.assert_allclose(linear[0, :, :, 0], [[0, 0.5, 1], [1, 1.5, 2], [2, 2.5, 3]])
    (grad,) = _custom("ResizeNearestGrad", "f32[1,2,2,1]", b'"00"', near)
    np.testing.assert_array_equal(grad, image * 4)


def test_kernel_custom_call_is_kept_with_its_configuration() -> None:
    call = 'custom-call(x), custom_call_target="AwsNeuronCustomOp"'
    text = f"x = f32[4] parameter(0)\nROOT r = f32[4] {call}"
    graph: Graph = import_hlo(_with_config(text, b"config"))
    (kept,) = graph.results
    assert isinstance(kept, ops.CustomCall) and kept.config == "config"


# The published table

PUBLISHED = """
    Abs Add Allgather Allreduce Atan2 Batchnorm Batchnormgrad Batchnorminference
    BitcastConvertType Broadcast BroadcastInDim Ceil Clamp Compare Concatenate Constant
    ConstantLiteral ConvertElementType Cos Customcall Div Dot DotGeneral DynamicUpdateSlice Eq
    Exp Floor Gather Ge GetTupleElement Gt Iota Le Log LogicalAnd LogicalNot Lt Max Min Mul Ne
    Pad Pow Reduce Reshape Rev RngBitGenerator RngUniform Rsqrt Scatter Select SelectAndScatter
    ShiftRightLogical Sign Sin Slice Sqrt Sub Tanh Transpose Tuple
"""


def test_every_published_operator_is_listed() -> None:
    listed = operators()
    assert listed == sorted(set(listed))
    assert not set(PUBLISHED.split()) - set(listed)
    assert len(listed) > len(IMPORTERS) / 2
