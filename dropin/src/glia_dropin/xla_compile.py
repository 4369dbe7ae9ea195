"""HLO modules compiled for clients that hand them over as bytes, by way of the compile cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import glia
from glia.base.output_files import writing
from glia.cc_flags import options_of_flags
from glia_dropin.xla_cache import CacheUrl, directory_of_cache

HLO_FILE, NEFF_FILE = "model.hlo_module.pb", "model.neff"


def neuron_xla_compile(
    module_bytes: bytes,
    compiler_flags: str | Sequence[str] = (),
    input_format: str = "hlo",
    platform_target: str | None = None,
    cache_key: str | None = None,
    retry_failed_compilation: bool = False,
    lazy: bool = True,
    use_cache: bool = True,
    cache_dir: str | None = None,
    work_dir: str | Path | None = None,
    create_subdir: bool = False,
) -> bytes:
    """The NEFF of a serialized HLO module, as bytes; ValueError for another input format.

    `platform_target` applies where the flags name no target. Entries of the cache are found by
    content and failures are not kept, so `retry_failed_compilation` and `lazy` make no difference.
    The module and the NEFF are left in `work_dir`; with `create_subdir`, in a directory inside it
    that `cache_key` names. Raises the errors of `glia.compile`.
    """
    if input_format != "hlo":
        raise ValueError(f"input_format={input_format!r}: only 'hlo' is compiled")
    options: dict[str, Any] = options_of_flags(compiler_flags)
    if platform_target is not None:
        options.setdefault("target", platform_target)
    if use_cache and not options.get("no_cache"):
        url = CacheUrl.get_cache_url(cache_dir or options.get("cache_dir"))
        options["cache_dir"] = str(directory_of_cache(url))
    else:
        options["no_cache"] = True
    neff = glia.compile(module_bytes, **options)
    data: bytes = neff.to_bytes()
    if work_dir is not None:
        inside = (cache_key or "model") if create_subdir else ""
        _leave(Path(work_dir) / inside, module_bytes, data)
    return data


def _leave(directory: Path, hlo: bytes, neff: bytes) -> None:
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / HLO_FILE).write_bytes(hlo)
        (directory / NEFF_FILE).write_bytes(neff)
