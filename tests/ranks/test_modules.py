"""Collectives of HLO and StableHLO modules in every form: compiled and run by several ranks."""

from __future__ import annotations

import numpy as np
import pytest

import glia
from glia.frontend.errors import MalformedModule
from support.hlo_text import from_text

SUM = "sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }"


def _module(body: str, header: str = "") -> bytes:
    return from_text(
        f"HloModule m{header}\n{SUM}\nENTRY main {{ x = f32[4] parameter(0)\n{body} }}"
    )


def _run(module: bytes | str, ranks: int, **options: int) -> list[np.ndarray]:
    model = glia.load(glia.compile(module, auto_cast="none", **options), ranks=ranks)
    given = [[np.arange(4, dtype=np.float32) + 10 * rank] for rank in range(ranks)]
    return [found[0] for found in model.run_ranks(given)]


def _row(rank: int) -> np.ndarray:
    return np.arange(4, dtype=np.float32) + 10 * rank


GROUPS = {
    "listed": "replica_groups={{0,1},{2,3}}",
    "counted out": "replica_groups=[2,2]<=[4]",
    "transposed": "replica_groups=[2,2]<=[2,2]T(1,0)",
    "of a mesh": "replica_groups=mesh['a'=2,'b'=2] {'b'}",
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_in_every_form(name: str) -> None:
    found = _run(_module(f"ROOT r = f32[4] all-reduce(x), {GROUPS[name]}, to_apply=sum"), 4)
    pairs = (
        [(0, 2), (1, 3), (0, 2), (1, 3)] if name == "transposed" else [(0, 1)] * 2 + [(2, 3)] * 2
    )
    for rank, (a, b) in enumerate(pairs):
        np.testing.assert_array_equal(found[rank], _row(a) + _row(b))


# Of two replicas of two partitions, by what decides: what rank 0 sums up
MODES = {
    "replica_groups={{0,1}}": (0, 2),
    "replica_groups={{0,1}}, channel_id=1": (0, 1, 2, 3),
    "replica_groups={{0,1},{2,3}}, channel_id=1, use_global_device_ids=true": (0, 1),
}


@pytest.mark.parametrize("text", MODES)
def test_what_groups_count_follows_from_the_channel(text: str) -> None:
    module = _module(f"ROOT r = f32[4] all-reduce(x), {text}, to_apply=sum")
    found = _run(module, 4, replicas=2, partitions=2)
    np.testing.assert_array_equal(found[0], sum(_row(rank) for rank in MODES[text]))


def test_permutations_of_replicas_and_of_partitions() -> None:
    for text, source in (("", 2), (", channel_id=3", 1)):
        body = f"ROOT r = f32[4] collective-permute(x), source_target_pairs={{{{1,0}}}}{text}"
        found = _run(_module(body), 4, replicas=2, partitions=2)
        np.testing.assert_array_equal(found[0], _row(source))
        np.testing.assert_array_equal(found[3], np.zeros(4))


ASYNCHRONOUS = {
    "all-reduce": """s = f32[4] all-reduce-start(x), replica_groups={{0,1}}, to_apply=sum
        ROOT r = f32[4] all-reduce-done(s)""",
    "all-gather": """s = (f32[4], f32[8]) all-gather-start(x), replica_groups={{0,1}},
            dimensions={0}
        ROOT r = f32[8] all-gather-done(s)""",
    "collective-permute": """s = (f32[4], f32[4]) collective-permute-start(x),
            source_target_pairs={{0,1},{1,0}}
        ROOT r = f32[4] collective-permute-done(s)""",
    "reduce-scatter": """s = ((f32[4]), f32[2], s32[]) reduce-scatter-start(x),
            replica_groups={{0,1}}, dimensions={0}, to_apply=sum
        ROOT r = f32[2] reduce-scatter-done(s)""",
    "all-to-all": """s = ((f32[4]), f32[4], s32[]) all-to-all-start(x), replica_groups={{0,1}},
            dimensions={0}
        ROOT r = f32[4] all-to-all-done(s)""",
}  # fmt: skip


@pytest.mark.parametrize("kind", ASYNCHRONOUS)
def test_asynchronous_collectives_give_their_results(kind: str) -> None:
    a, b = _row(0), _row(1)
    expected = {
        "all-reduce": a + b,
        "all-gather": np.concatenate([a, b]),
        "collective-permute": a,
        "reduce-scatter": (a + b)[2:],
        "all-to-all": np.concatenate([a[2:], b[2:]]),
    }
    np.testing.assert_array_equal(_run(_module(ASYNCHRONOUS[kind]), 2)[1], expected[kind])


def test_several_tensors_travel_together() -> None:
    module = _module("""y = f32[4] negate(x)
        s = (f32[4], f32[4]) all-reduce(x, y), replica_groups={{0,1,2}}, to_apply=sum
        g = f32[4] get-tuple-element(s), index=0
        h = f32[4] get-tuple-element(s), index=1
        ROOT r = f32[4] subtract(g, h)""")
    np.testing.assert_array_equal(_run(module, 3)[2], 2 * (_row(0) + _row(1) + _row(2)))


PAIRS = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2}}"}'


def test_what_is_sent_is_received() -> None:
    module = _module(f"""t = token[] after-all()
        got = (f32[4], u32[], token[]) recv(t), channel_id=2, {PAIRS}
        done = (f32[4], token[]) recv-done(got), channel_id=2, {PAIRS}
        value = f32[4] get-tuple-element(done), index=0
        doubled = f32[4] add(x, x)
        sent = (f32[4], u32[], token[]) send(doubled, t), channel_id=2, {PAIRS}
        after = token[] send-done(sent), channel_id=2, {PAIRS}
        ROOT r = f32[4] add(value, x)""")
    found = _run(module, 3)
    for rank, received in enumerate((0 * _row(0), 2 * _row(0), 2 * _row(1))):
        np.testing.assert_array_equal(found[rank], received + _row(rank))


def test_a_channel_that_waits_for_itself_is_refused() -> None:
    module = _module(f"""t = token[] after-all()
        got = (f32[4], u32[], token[]) recv(t), channel_id=2, {PAIRS}
        done = (f32[4], token[]) recv-done(got), channel_id=2, {PAIRS}
        value = f32[4] get-tuple-element(done), index=0
        sent = (f32[4], u32[], token[]) send(value, t), channel_id=2, {PAIRS}
        after = token[] send-done(sent), channel_id=2, {PAIRS}
        ROOT r = f32[4] add(value, x)""")
    with pytest.raises(MalformedModule, match="depends on what it receives"):
        glia.compile(module)


def test_a_send_alone_is_refused() -> None:
    module = _module(f"""t = token[] after-all()
        sent = (f32[4], u32[], token[]) send(x, t), channel_id=2, {PAIRS}
        after = token[] send-done(sent), channel_id=2, {PAIRS}
        ROOT r = f32[4] add(x, x)""")
    with pytest.raises(MalformedModule, match="channel 2"):
        glia.compile(module)


def test_a_receive_from_nowhere_is_refused() -> None:
    module = _module("""t = token[] after-all()
        sent = (f32[4], u32[], token[]) send(x, t), channel_id=2
        after = token[] send-done(sent), channel_id=2
        got = (f32[4], u32[], token[]) recv(t), channel_id=2
        done = (f32[4], token[]) recv-done(got), channel_id=2
        ROOT r = f32[4] get-tuple-element(done), index=0""")
    with pytest.raises(MalformedModule, match="names no devices"):
        glia.compile(module)


def test_an_exchange_of_several_tensors_of_stablehlo_is_one_of_each() -> None:
    text = """module attributes {mhlo.num_replicas = 2 : i32} {
      func.func @main(%x: tensor<4xf32>) -> tensor<6xf32> {
        %y = stablehlo.slice %x [0:2] : (tensor<4xf32>) -> tensor<2xf32>
        %0:2 = "stablehlo.all_to_all"(%x, %y) <{split_dimension = 0 : i64,
          concat_dimension = 0 : i64, split_count = 2 : i64,
          replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}>
          : (tensor<4xf32>, tensor<2xf32>) -> (tensor<4xf32>, tensor<2xf32>)
        %1 = stablehlo.concatenate %0#0, %0#1, dim = 0
          : (tensor<4xf32>, tensor<2xf32>) -> tensor<6xf32>
        return %1 : tensor<6xf32> } }"""
    np.testing.assert_array_equal(_run(text, 2)[1], [2, 3, 12, 13, 1, 11])
