"""Dispatchers that compile the functions which a function calls as parts of its machine code only.

Numba optimises each function that compiled code calls, generates its machine code and a wrapper for calls from Python,
and does all this again for each function that calls it. Here a function that is called by another is translated to
LLVM code once. It is optimised and becomes machine code as part of those that Python calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import caching, compiler, dispatcher, sigutils, types, typing
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher, cpu_target

__all__ = ["Kernel"]


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
        if not self._emitted:
            if all(f.name != name or f.is_declaration for f in self._final_module.functions):
                return 0
            self._get_module_for_linking()
            self._dynamic_globals.clear()
            self._optimize_final_module()
            self._final_module.verify()
            self._finalize_final_module()
            self._emitted = True
        address: int = super().get_pointer_to_function(name)
        return address

    @property
    def codegen(self) -> Any:
        return self._codegen if self._emitted else self

    def set_env(self, name: str, env: Any) -> None:
        """Do nothing: only wrappers for Python read the environment."""


@contextmanager
def _in_parts() -> Iterator[None]:
    """Compile what is called, including Numba's own functions, in parts."""
    codegen = cpu_target.target_context.codegen()
    before = codegen._library_class
    codegen._library_class = _Part
    try:
        yield
    finally:
        codegen._library_class = before


class _Compiler(dispatcher._FunctionCompiler):
    def _compile_core(self, args: Any, return_type: Any) -> Any:
        context = self.targetdescr.target_context
        library = JITCodeLibrary(context.codegen(), self.py_func.__qualname__)
        library.enable_object_caching()
        return self.compiled(args, return_type, library)

    def compiled(self, args: Any, return_type: Any, library: Any, part: bool = False) -> Any:
        flags = compiler.Flags()
        self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
        flags.no_cfunc_wrapper = True
        if part:
            flags.no_compile = flags.no_cpython_wrapper = True
        target = self.targetdescr
        with _in_parts():
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


class Kernel(CPUDispatcher):
    """A Numba function, compiled separately for calls from Python and for calls from compiled code."""

    def __init__(self, py_func: Callable[..., Any], targetoptions: dict[str, Any]):
        super().__init__(py_func, targetoptions=targetoptions)
        compiler_class = compiler.Compiler
        self._compiler = _Compiler(py_func, self.targetdescr, targetoptions, {}, compiler_class)
        self._parts: dict[Any, Any] = {}
        ordered = [(k, sorted(v) if isinstance(v, set) else v) for k, v in targetoptions.items()]
        self.settings = repr(sorted(ordered))

    @property
    def cached(self) -> bool:
        """Whether machine code is kept on disk."""
        return type(self._cache) is not caching.NullCache

    def get_call_template(self, args: Any, kws: Any) -> Any:
        pysig, args = self._compiler.fold_argument_types(args, kws)
        args = tuple(types.unliteral(a) for a in args)  # one part for all numbers
        self.part(args)
        name = self.py_func.__name__
        signatures = [part.signature for part, _ in self._parts.values()]
        template = typing.make_concrete_template(f"CallTemplate({name})", name, signatures)
        return template, pysig, args, {}

    def get_overload(self, sig: Any) -> Any:
        args, _ = sigutils.normalize_signature(sig)
        return self._parts[tuple(types.unliteral(a) for a in args)][1]

    @global_compiler_lock
    def part(self, args: tuple[Any, ...]) -> Any:
        """Return the result of compiling for calls from compiled code."""
        if args in self._parts:
            return self._parts[args][0]
        library = _Part(self.targetctx.codegen(), self.py_func.__qualname__)
        result = self._compiler.compiled(args, None, library, part=True)
        key = object()
        self.targetctx.insert_user_function(key, result.fndesc, [library])
        self._parts[args] = result, key
        return result
