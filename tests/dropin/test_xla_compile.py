"""libneuronxla: modules compiled through the cache, and files that clients keep in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glia
from glia.cache.errors import UnusableCache
from glia.neff.package import Neff
from libneuronxla import neuron_cc_cache, neuron_xla_compile
from support.hlo_text import entry

DOUBLING = entry("p = f32[4] parameter(0)\n ROOT r = f32[4] add(p, p)")


@pytest.fixture
def cache(tmp_path: Path) -> neuron_cc_cache.CompileCacheFs:
    url = neuron_cc_cache.CacheUrl.get_cache_url(cache_dir=tmp_path / "cache")
    return neuron_cc_cache.create_compile_cache(url)


def test_a_module_is_compiled_and_cached(cache: neuron_cc_cache.CompileCacheFs) -> None:
    arguments = {"platform_target": "trn1", "cache_dir": cache.cache_url.url}
    data = neuron_xla_compile(DOUBLING, "--optlevel=1", **arguments)
    neff = Neff.from_bytes(data)
    assert neff.target == "trn1"
    assert glia.load(neff)(np.ones(4, np.float32))[0].tolist() == [2] * 4
    (stored,) = Path(cache.cache_path).glob("MODULE_*/model.neff")
    assert stored.read_bytes() == data
    assert neuron_xla_compile(DOUBLING, "--optlevel=1", **arguments) == data
    cache.clean()
    assert not stored.exists()


def test_flags_have_the_last_word_and_files_are_left_where_asked(tmp_path: Path) -> None:
    data = neuron_xla_compile(
        DOUBLING, ["--target=trn3"], platform_target="trn1", use_cache=False,
        cache_key="first", work_dir=tmp_path, create_subdir=True,
    )  # fmt: skip
    assert (tmp_path / "first/model.neff").read_bytes() == data
    assert (tmp_path / "first/model.hlo_module.pb").read_bytes() == DOUBLING
    assert Neff.from_bytes(data).target == "trn3"


def test_other_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="'hlo'"):
        neuron_xla_compile(DOUBLING, input_format="mlir")


def test_clients_keep_files_in_the_cache(
    cache: neuron_cc_cache.CompileCacheFs, tmp_path: Path
) -> None:
    place = cache.get_cache_dir("0a", "--optlevel=1")
    assert place.startswith(cache.cache_path) and place != cache.get_cache_dir("0a", "-O2")
    cache.upload_string_to_file(f"{place}/note.txt", "kept")
    cache.upload_file(f"{place}/copy.txt", f"{place}/note.txt")
    assert cache.exists(f"{place}/copy.txt")
    assert cache.download_file_to_string(f"{place}/copy.txt", 2) == "ke"
    assert cache.download_folder(place, str(tmp_path / "out"))
    cache.download_file(f"{place}/note.txt", str(tmp_path / "note.txt"))
    assert (tmp_path / "out/copy.txt").read_text() == (tmp_path / "note.txt").read_text() == "kept"
    cache.upload_folder(f"{place}2", str(tmp_path / "out"))
    cache.remove(place)
    assert not cache.exists(place) and cache.exists(f"{place}2/note.txt")
    assert not cache.download_folder(place, str(tmp_path / "again"))


def test_nothing_outside_of_the_cache_is_removed(
    cache: neuron_cc_cache.CompileCacheFs, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    for path in (outside, Path(cache.cache_url.url) / "../outside"):
        with pytest.raises(ValueError, match="not in the cache"):
            cache.remove(str(path))
    assert outside.exists()


def test_a_collected_module_waits_for_its_neff(cache: neuron_cc_cache.CompileCacheFs) -> None:
    place = cache.get_cache_dir("0a", "")
    cache.upload_string_to_file(f"{place}/model.hlo_module.pb.gz", "")
    (found,) = cache.get_hlos()
    assert cache.hlo_acquire_lock(found) and not cache.hlo_acquire_lock(found)
    cache.hlo_release_lock(found)
    assert cache.hlo_acquire_lock(found)
    cache.clear_locks()
    cache.upload_string_to_file(f"{place}/model.done", "")
    assert cache.get_hlos() == []


def test_object_stores_are_refused_by_name() -> None:
    url = neuron_cc_cache.CacheUrl("s3://bucket/cache")
    assert url.is_s3()
    with pytest.raises(UnusableCache, match="s3"):
        neuron_cc_cache.create_compile_cache(url)
