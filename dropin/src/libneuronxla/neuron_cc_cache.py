"""The compile cache, from glia."""

from glia_dropin.xla_cache import CacheUrl, create_compile_cache
from glia_dropin.xla_cache import ClientCache as CompileCache
from glia_dropin.xla_cache import ClientFileCache as CompileCacheFs
from glia_dropin.xla_cache import ClientObjectCache as CompileCacheS3

__all__ = ["CacheUrl", "CompileCache", "CompileCacheFs", "CompileCacheS3", "create_compile_cache"]
