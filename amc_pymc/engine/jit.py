"""Numba functions with their machine code on disk, of which only what Python calls becomes machine code.

Numba optimises each function that compiled code calls, generates its machine code and a wrapper for calls from Python,
and does all this again for each function that calls it. Here a function that is called by another is translated to
LLVM code once, as a *part*. It is optimised and becomes machine code within the functions that Python calls.
"""

from __future__ import annotations

import logging
import pickle
import sys

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, overload

import numpy as np

from numba.core import caching, compiler, dispatcher, event, serialize, sigutils, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import CPUDispatcher
from numba.core.typing.templates import make_concrete_template

from amc_pymc.engine.cache import cached_name, read_cached, write_cached

_log = logging.getLogger("amc_pymc")


@overload
def njit[F: Callable[..., Any]](function: F, /) -> F: ...
@overload
def njit[F: Callable[..., Any]](**settings: Any) -> Callable[[F], F]: ...
def njit(*args: Any, **settings: Any) -> Any:
    """Compile a function as :func:`numba.njit` does, by default with NumPy's results of divisions by zero.

    With ``cache=True``, machine code is read from disk if no source file has changed that it may come from: those of
    this package, and those of the function's own package or beside its file.

    Examples
    --------
    >>> from amc_pymc.engine.jit import njit
    >>> @njit
    ... def reciprocal(x):
    ...     return 1.0 / x
    >>> reciprocal(4.0)
    0.25
    """
    cached = settings.pop("cache", False)
    settings = {"nopython": True, "boundscheck": None, "error_model": "numpy", **settings}

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = Kernel(function, targetoptions=settings)
        if cached:
            kernel._cache = _Cache(kernel)
        return kernel

    return decorate(args[0]) if args else decorate


class Kernel(CPUDispatcher):
    """A Numba function, compiled separately for calls from Python and as a part of others."""

    def __init__(self, py_func: Callable[..., Any], locals: Any = None, targetoptions: Any = None):
        super().__init__(py_func, targetoptions=targetoptions)
        self._cache: Any = caching.NullCache()
        self._compiler = _Compiler(py_func, self.targetdescr, targetoptions, {}, compiler.Compiler)
        self._parts: dict[Any, Any] = {}
        ordered = [(k, sorted(v) if isinstance(v, set) else v) for k, v in targetoptions.items()]
        self.settings = repr(sorted(ordered))

    def __reduce__(self) -> Any:
        """Pickle by name, if there is one."""
        named = getattr(sys.modules.get(self.__module__), self.py_func.__name__, None) is self
        return self.py_func.__name__ if named else super().__reduce__()

    def cached_name(self, *key: Any) -> str | None:
        """Return the name of machine code on disk; None if it is not kept there."""
        cached = isinstance(self._cache, _Cache)
        return cached_name(self.py_func, (self.settings, *key)) if cached else None

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile the part that another function calls; called by Numba."""
        pysig, args = self._compiler.fold_argument_types(args, kws)
        args = tuple(types.unliteral(a) for a in args)  # one part for all numbers
        self.part(args)
        name = self.py_func.__name__
        signatures = [part.signature for part, _ in self._parts.values()]
        template = make_concrete_template(f"CallTemplate({name})", name, signatures)
        return template, pysig, args, {}

    def get_overload(self, sig: Any) -> Any:
        """Return the key by which Numba finds a part."""
        args, _ = sigutils.normalize_signature(sig)
        return self._parts[tuple(types.unliteral(a) for a in args)][1]

    @global_compiler_lock
    def part(self, args: tuple[Any, ...]) -> Any:
        """Return the result of compiling the function as a part of others."""
        if args not in self._parts:
            context: Any = self.targetctx
            library, key = _Part(context.codegen(), self.py_func.__qualname__), object()
            with compiling(self, args):
                result = self._compiler.compiled(args, None, library, part=True)
            context.insert_user_function(key, result.fndesc, [library])
            self._parts[args] = result, key
        return self._parts[args][0]


class _Compiler(dispatcher._FunctionCompiler):  # type: ignore[misc, name-defined]
    def _compile_core(self, args: Any, return_type: Any) -> Any:
        codegen = self.targetdescr.target_context.codegen()
        library = JITCodeLibrary(codegen, self.py_func.__qualname__)
        library.enable_object_caching()
        result = self.compiled(args, return_type, library)
        set_environments(library)
        return result

    def compiled(self, args: Any, return_type: Any, library: Any, part: bool = False) -> Any:
        flags: Any = compiler.Flags()
        target = self.targetdescr
        target.options.parse_as_flags(flags, self.targetoptions)
        flags.no_cfunc_wrapper = True
        if part:
            flags.no_compile = flags.no_cpython_wrapper = True
        codegen = target.target_context.codegen()
        before, codegen._library_class = codegen._library_class, _Part  # of what is called
        try:
            return compiler.compile_extra(
                target.typing_context,
                target.target_context,
                self.py_func,
                args,
                return_type,
                flags,
                {},
                library,
                self.pipeline_class,
            )
        finally:
            codegen._library_class = before


class _Part(JITCodeLibrary):
    """Code that is neither optimised nor made executable unless Python is to call it."""

    _emitted = False

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        defined = {f.name for f in self._final_module.functions if not f.is_declaration}
        if not self._emitted and name not in defined:
            return 0
        self._emit()
        address: int = super().get_pointer_to_function(name)
        return address

    def serialize_using_object_code(self) -> Any:
        self._ensure_finalized()
        self._emit()
        return super().serialize_using_object_code()

    def _emit(self) -> None:
        if self._emitted:
            return
        self._emitted = True
        self._get_module_for_linking()
        self._dynamic_globals.clear()
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()
        set_environments(self)

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        library = super()._unserialize(codegen, state)
        library._emitted = True
        return library

    @property
    def codegen(self) -> Any:
        return self._codegen if self._emitted else self

    def set_env(self, name: str, env: Any) -> None:
        """Do nothing: :func:`set_environments` does it when the code becomes executable."""


def set_environments(library: Any) -> None:
    """Give the functions in executable code the objects that conversions to Python objects need."""
    for variable in library._final_module.global_variables:
        found = lookup_environment(variable.name)
        if found is not None:
            library._codegen.set_env(variable.name, found)
            library.environments = [*getattr(library, "environments", ()), found]


class _Cache(caching.NullCache):
    """Machine code of a function on disk; a file for each type of its arguments."""

    def __init__(self, kernel: Kernel):
        self._kernel = kernel

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        name = self._kernel.cached_name(sig)
        data = read_cached(name) if name else None
        if data is not None:
            try:
                return compiler.CompileResult._rebuild(target_context, *pickle.loads(data))
            except Exception as error:  # whatever it raises, the code is recompiled
                _log.debug("Machine code %s cannot be used: %r", name, error)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        name = self._kernel.cached_name(sig)
        if name and not data.library.has_dynamic_globals:
            write_cached(name, bytes(serialize.dumps(data._reduce())))


# --- reports ----------------------------------------------------------------------------------------


@contextmanager
def compiling(kernel: Any, args: Any) -> Iterator[None]:
    """Tell listeners that a function is compiled."""
    details = {"dispatcher": kernel, "args": args, "return_type": None}
    with event.trigger_event("numba:compile", details):
        yield


class _Listener(event.Listener):
    def __init__(self, report: Callable[[str], None]):
        self._report, self._depth = report, 0

    def on_start(self, event: Any) -> None:
        self._depth += 1
        function = event.data["dispatcher"].py_func
        if not function.__module__.startswith("numba."):
            self._report(function.__name__.strip("_").replace("_", " "))

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._report("")


@contextmanager
def reports_of_compiling(report: Callable[[str], None]) -> Iterator[None]:
    """Call ``report`` with the words of each compiled function's name, but Numba's own, and with "" after the last."""
    with event.install_listener("numba:compile", _Listener(report)):
        yield


# --- kernels for all ----------------------------------------------------------------------------------


@njit(cache=True)
def fill(out: np.ndarray, values: np.ndarray) -> None:
    """Copy values (n,) to an array; Numba's own assignment to slices takes longer to compile."""
    for k in range(values.size):
        out[k] = values[k]
