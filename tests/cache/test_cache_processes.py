"""The compile cache with several writers, and with writers that are killed."""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glia
from glia.cache import store
from glia.cache.locks import locked
from glia.cache.store import CompileCache, strays
from glia.neff.package import Neff
from glia.options import CompileOptions
from support.hlo_text import entry

MODULES = [entry(f"p = f32[{n}] parameter(0)\n ROOT r = f32[{n}] add(p, p)") for n in (3, 4, 5)]
OPTIONS = CompileOptions(auto_cast="none")
NEFFS = [glia.compile(module, no_cache=True) for module in MODULES]


def _forked(work: Callable[[], object]) -> int:
    """A process that does the work; its exit status is 0 when it returns."""
    with warnings.catch_warnings():  # of JAX, whose threads the child does not have
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def _statuses(children: list[int]) -> list[int]:
    return [os.waitpid(child, 0)[1] for child in children]


def _compiled(cache: CompileCache, number: int, build: Callable[[], Neff] | None = None) -> None:
    found = cache.compiled(MODULES[number], OPTIONS, build or (lambda: NEFFS[number]))
    assert found.to_bytes() == NEFFS[number].to_bytes()


def _entries(cache: CompileCache) -> list[store.Entry]:
    return list(cache.entries())


def test_of_eight_writers_one_compiles_and_all_get_its_bytes(tmp_path: Path) -> None:
    cache, compilations = CompileCache(tmp_path), tmp_path / "compilations"

    def build() -> Neff:
        with compilations.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return NEFFS[0]

    children = [_forked(lambda: _compiled(cache, 0, build)) for _ in range(8)]
    assert _statuses(children) == [0] * 8
    assert len(compilations.read_text().splitlines()) == 1
    assert [each.problem for each in _entries(cache)] == [""]


def _kill_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End this process without notice before one of its changes to the file system."""
    left = [call]

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return change

    monkeypatch.setattr(store, "_write", dying(store._write))
    monkeypatch.setattr(os, "fsync", dying(os.fsync))
    for owner, name in ((os, "rename"), (os, "rmdir"), (os, "chmod"), (os, "mkdir")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))


@pytest.mark.parametrize("is_damaged", [False, True], ids=["new", "replacing"])
def test_a_writer_killed_at_any_step_leaves_the_entry_absent_or_complete(
    is_damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 0
    for call in range(60):
        cache = CompileCache(tmp_path / str(call))
        if is_damaged:
            _compiled(cache, 0)
            (place,) = (each.path for each in _entries(cache))
            (place / store.NEFF).write_bytes(b"")

        def work(cache: CompileCache = cache, call: int = call) -> None:
            _kill_at(call, monkeypatch)
            _compiled(cache, 0)

        (status,) = _statuses([_forked(work)])
        found = _entries(cache)
        assert len(found) <= 1
        assert is_damaged or all(not each.problem for each in found)
        _compiled(cache, 0)
        (after,) = _entries(cache)
        assert not after.problem and after.bytes
        if status == 0:
            assert killed == call
            break
        killed += 1
        cache.clean(lambda entry: False)
        assert not strays(after.path) and [*after.path.parent.iterdir()] == [after.path]
    else:
        pytest.fail("the writer never came to an end")
    assert killed >= 8


def test_a_killed_holder_does_not_keep_others_waiting(tmp_path: Path) -> None:
    cache, ready = CompileCache(tmp_path), tmp_path / "ready"

    def never() -> Neff:
        ready.touch()
        time.sleep(600)
        return NEFFS[0]

    holder = _forked(lambda: _compiled(cache, 0, never))
    while not ready.exists():
        time.sleep(0.01)
    others = [_forked(lambda: _compiled(cache, 0)) for _ in range(3)]
    time.sleep(0.2)
    assert os.waitpid(others[0], os.WNOHANG) == (0, 0), "it does not wait"
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    assert _statuses(others) == [0] * 3


def test_writers_killed_at_random_and_cleaners_never_break_a_result(tmp_path: Path) -> None:
    cache, generator = CompileCache(tmp_path), random.Random(0)
    failures = tmp_path / "failures"

    def work() -> None:
        own = random.Random(os.getpid())
        try:
            while True:
                _compiled(cache, own.randrange(len(MODULES)))
                if own.random() < 0.1:
                    cache.clean(lambda entry: True)
        except BaseException as error:
            failures.write_text(repr(error))
            raise

    children = [_forked(work) for _ in range(8)]
    ends = time.monotonic() + 2
    while time.monotonic() < ends:
        place = generator.randrange(8)
        os.kill(children[place], signal.SIGKILL)
        os.waitpid(children[place], 0)
        children[place] = _forked(work)
        time.sleep(generator.uniform(0, 0.03))
    for child in children:
        os.kill(child, signal.SIGKILL)
    _statuses(children)
    assert not failures.exists(), failures.read_text()
    for number in range(len(MODULES)):
        _compiled(cache, number)
    cache.clean(lambda entry: False)
    found = _entries(cache)
    assert len(found) == len(MODULES) and not any(each.problem for each in found)
    assert {*found[0].path.parent.iterdir()} == {each.path for each in found}


def test_a_lock_whose_file_was_removed_is_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path) as outer:
        with locked(path, waits=False) as inner:
            assert outer and not inner
        path.unlink()
        with locked(path, waits=False) as other:
            assert other and path.exists()
