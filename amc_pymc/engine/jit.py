"""Numba functions with their machine code on disk, and what they take by address: records and first-class functions.

Numba optimises each function that compiled code calls, generates its machine code and a wrapper for calls from Python,
and does all this again for each function that calls it. Here a function that is called by another is translated to
LLVM code once, as a *part*. It is optimised and becomes machine code within the functions that Python calls.

Machine code is kept in a folder of the user, under names that depend on all source that it may come from.

Numba passes a named tuple of arrays as hundreds of numbers, in each call of each function. The fields of a record, which
is a named tuple, are also written into memory, one after another, and compiled code takes their address.

Cached machine code cannot contain the addresses of arrays. A first-class function is therefore a piece of memory too:
the address of its code, followed by the words of all arrays that are bound to it. The code takes the address of this
memory before its arguments.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import struct
import sys
import tempfile
import time
import warnings

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, overload

import llvmlite
import numba
import numpy as np

from llvmlite import ir
from numba import typeof
from numba.core import (
    caching,
    cgutils,
    compiler,
    dispatcher,
    errors,
    event,
    serialize,
    sigutils,
    types,
)
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.datamodel.models import PrimitiveModel
from numba.core.environment import lookup_environment
from numba.core.imputils import lower_constant
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typing.templates import AttributeTemplate, Signature, make_concrete_template
from numba.extending import (
    NativeValue,
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    register_model,
    typeof_impl,
    unbox,
)

_log = logging.getLogger("amc_pymc")
_HERE = Path(__file__).parents[1]
#: Folders of this package without compiled functions; a change there does not touch machine code.
WITHOUT_KERNELS = set("bandits evidence likelihood_free reading results rows runs steps".split())
#: What was changed later may differ from what this process has imported.
_BEGIN = time.time()
#: Beyond so many bytes, files of the cache are removed.
_LARGEST = 2**30
_WORD = ir.IntType(64)
_WORDS = _WORD.as_pointer()
#: Words of an array before its shape: number of elements, size of one, address.
_HEAD = 3


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
        file = cached_file(sig, kernel=self._kernel)
        data = read_cached(file)
        if data is not None:
            try:
                return compiler.CompileResult._rebuild(target_context, *pickle.loads(data))
            except Exception as error:  # whatever it raises, the code is recompiled
                _log.debug("Machine code %s cannot be used: %r", file, error)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        file = cached_file(sig, kernel=self._kernel)
        if file and not data.library.has_dynamic_globals:
            write_cached(file, bytes(serialize.dumps(data._reduce())))


# --- files ------------------------------------------------------------------------------------------


def cached_file(*key: Any, kernel: Kernel | None = None) -> Path | None:
    """Return the file of some machine code, in ``AMC_PYMC_CACHE`` or the user's cache folder; None if it is not kept.

    Its name depends on ``key``, on the source files of this package that may have compiled functions, on versions and on
    the processor. That of a kernel also depends on its function, and on the source files of the function's own package,
    or beside its file. Its code is not kept if it is not the same in each process, as that of a function with a
    closure.

    Code in the folder is executed. None, with one warning, if other users can write to it; also if it cannot be made.
    """
    roots, suffix = [_HERE], "machine"
    if kernel is not None:
        suffix, function, kinds = "kernel", kernel.py_func, repr((kernel.settings, *key))
        code, root = function.__code__, Path(function.__code__.co_filename)
        kept = isinstance(kernel._cache, _Cache) and not function.__closure__
        if not kept or " at 0x" in kinds or not root.exists():
            return None
        while (root.parent / "__init__.py").exists():  # to the topmost package that it is in
            root = root.parent
        roots.append(root)
        place = function.__module__, function.__qualname__, code.co_firstlineno, code.co_names
        constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
        key = kinds, place, constants, code.co_code
    stamps = [_digest(root) for root in roots]
    if None in stamps:
        return None
    versions = (sys.version_info[:2], np.__version__, numba.__version__, llvmlite.__version__)
    processor = cpu_target.target_context.codegen().magic_tuple()
    name = hashlib.sha256(repr((key, stamps, versions, processor)).encode()).hexdigest()[:40]
    home = os.environ.get("AMC_PYMC_CACHE") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(home) if home else Path.home() / ".cache") / "amc_pymc"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):  # not writable, or there is no home
        return None
    if os.name == "posix" and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        _distrust(folder)
        return None
    return folder / f"{name}.{suffix}"


@functools.cache
def _digest(root: Path) -> str | None:
    """Return a digest of the source files in a package or beside a file; None if one was changed in this process."""
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py") if root.is_dir() else root.parent.glob("*.py")):
        if root == _HERE and file.relative_to(root).parts[0] in WITHOUT_KERNELS:
            continue
        if file.stat().st_mtime > _BEGIN:
            return None
        digest.update(str(file.relative_to(root.parent)).encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def _distrust(folder: Path) -> None:
    warnings.warn(
        f"The kernel cache {folder} belongs to another user, or others can write to it. It is not used, and "
        "each process compiles its kernels. Make it your own with mode 700, or set AMC_PYMC_CACHE.",
        stacklevel=2,
    )


def read_cached(file: Path | None) -> bytes | None:
    """Return what :func:`write_cached` wrote; None if there is nothing, or if a bit of it has changed."""
    try:
        found = None if file is None else file.read_bytes()
    except OSError:
        found = None
    if file is None or found is None or hashlib.sha256(found[32:]).digest() != found[:32]:
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # for `prune`
    return found[32:]


def write_cached(file: Path | None, data: bytes) -> None:
    """Write a file with a checksum; do nothing if it is None or the disk is full."""
    if file is None:
        return
    _prune_once(file.parent)
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(hashlib.sha256(data).digest() + data)
            os.replace(temporary, file)  # atomic
        except BaseException:
            os.unlink(temporary)
            raise


def prune(folder: Path, largest: int = _LARGEST) -> None:
    """Remove the files that were not used for longest, beyond ``largest`` bytes in all."""
    size = 0
    with contextlib.suppress(OSError):  # another process may have removed one
        for path in sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True):
            size += path.stat().st_size
            if size > largest:
                path.unlink()


_prune_once = functools.cache(prune)


# --- reports ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def compiling(kernel: Any, args: Any) -> Iterator[None]:
    """Tell listeners that a function is compiled."""
    details = {"dispatcher": kernel, "args": args, "return_type": None}
    with event.trigger_event("numba:compile", details):
        yield


@dataclass
class _Listener(event.Listener):
    report: Callable[[str], None]
    depth: int = 0

    def on_start(self, event: Any) -> None:
        self.depth += 1
        function = event.data["dispatcher"].py_func
        if not function.__module__.startswith("numba."):
            self.report(function.__name__.strip("_").replace("_", " "))

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if not self.depth:
            self.report("")


@contextlib.contextmanager
def reports_of_compiling(report: Callable[[str], None]) -> Iterator[None]:
    """Call ``report`` with the words of each compiled function's name, but Numba's own, and with "" after the last."""
    with event.install_listener("numba:compile", _Listener(report)):
        yield


# --- records ------------------------------------------------------------------------------------------


def record[T: tuple[Any, ...]](kind: type[T]) -> type[T]:
    """Make a record of a named tuple of arrays, numbers, functions and other records; class decorator.

    Compiled code reads fields, but makes no records. Arrays must be contiguous, in C order.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import numpy as np
    >>> from numba import njit
    >>> from amc_pymc.engine.jit import record
    >>> @record
    ... class Line(NamedTuple):
    ...     slopes: np.ndarray
    ...     intercept: float
    >>> @njit
    ... def value(line, x):
    ...     return line.intercept + line.slopes[0] * x
    >>> value(Line(np.array([2.0]), 1.0), 3.0)
    7.0
    """
    fields: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__getstate__": lambda self: None,  # addresses mean nothing in another process
        "words": functools.cached_property(words_of),
        "address": functools.cached_property(lambda self: self.words.ctypes.data),
    }
    made: Any = type(kind.__name__, (kind,), fields)
    typeof_impl.register(made)(RecordType)
    return made


def words_of(values: Iterable[Any]) -> np.ndarray:
    """Return the words of some values, one after another."""
    words: list[int] = []
    for value in values:
        if isinstance(value, np.ndarray):
            words += value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides
        elif hasattr(value, "address"):
            words.append(value.address)
        elif isinstance(value, float):
            words += struct.unpack("Q", struct.pack("d", value))
        else:
            words.append(int(value) % 2**64)
    return np.array(words, np.uint64)


class RecordType(types.Type):
    """Numba's type of a record, which is that of its fields and their places; made from a record."""

    def __init__(self, value: Any, context: Any):
        self.fields, self.places, place = dict[str, Any](), dict[str, int](), 0
        for name, each in zip(value._fields, value):
            kind, width = typeof_impl(each, context), 1
            if isinstance(each, np.ndarray):
                if not each.flags.c_contiguous:
                    raise ValueError(
                        f"an array of shape {each.shape} in a record is not contiguous"
                    )
                kind, width = types.Array(kind.dtype, each.ndim, "C"), _HEAD + 2 * each.ndim
            self.fields[name], self.places[name] = kind, place
            place += width
        fields = ", ".join(f"{name}: {kind}" for name, kind in self.fields.items())
        super().__init__(f"{type(value).__module__}.{type(value).__qualname__}({fields})")


class AddressModel(PrimitiveModel):
    """Representation of a Python object by the address of its words."""

    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, _WORDS)


def unbox_address(kind: Any, value: Any, c: Any) -> NativeValue:
    """Read the attribute ``address`` of a Python object, which may raise an error."""
    number = c.pyapi.object_getattr_string(value, "address")
    found = cgutils.is_not_null(c.builder, number)
    slot = cgutils.alloca_once_value(c.builder, cgutils.get_null_value(_WORDS))
    with c.builder.if_then(found):
        address = c.pyapi.long_as_voidptr(number)
        c.builder.store(c.builder.bitcast(address, _WORDS), slot)
        c.pyapi.decref(number)
    return NativeValue(c.builder.load(slot), is_error=c.builder.not_(found))


register_model(RecordType)(AddressModel)
unbox(RecordType)(unbox_address)


@infer_getattr
class _Fields(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, kind: RecordType, name: str) -> Any:  # type: ignore[override]
        return kind.fields.get(name)


@lower_getattr_generic(RecordType)
def _field(context: Any, builder: Any, kind: RecordType, words: Any, name: str) -> Any:
    place, field = kind.places[name], kind.fields[name]
    if isinstance(field, types.Array):
        return array_at(context, builder, field, words, place)
    word, value = word_at(builder, words, place), context.get_value_type(field)
    if isinstance(value, ir.PointerType):
        return builder.inttoptr(word, value)
    if field == types.boolean:
        return builder.trunc(word, value)
    return builder.bitcast(word, value)


def word_at(builder: Any, words: Any, place: int) -> Any:
    """Read a word. It never changes, so that loops read it once."""
    word = builder.load(builder.gep(words, [ir.Constant(_WORD, place)]))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


def array_at(context: Any, builder: Any, kind: Any, words: Any, place: int) -> Any:
    """Return the array that some words describe."""
    read = [word_at(builder, words, place + k) for k in range(_HEAD + 2 * kind.ndim)]
    view = context.make_array(kind)(context, builder)  # owns nothing
    view.nitems, view.itemsize = read[:2]
    view.data = builder.inttoptr(read[2], view.data.type)
    view.shape = cgutils.pack_array(builder, read[_HEAD : _HEAD + kind.ndim])
    view.strides = cgutils.pack_array(builder, read[_HEAD + kind.ndim :])
    view.meminfo, view.parent = (
        cgutils.get_null_value(v.type) for v in (view.meminfo, view.parent)
    )
    return view._getvalue()


# --- first-class functions ------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class FirstClassFunction:
    """A compiled function that compiled loops take as an argument and call by its address.

    Attributes
    ----------
    kernel : Numba function
        Compiled when the address is first needed.
    signature : numba signature
        Types of the other arguments and the result.
    arrays : sequence of arrays
        Last arguments of the kernel, bound by address and kept alive. Those from which code cannot read, because they
        are strided, unaligned or byte-swapped, are copied when the address is first needed.
    kept : object
        Objects kept alive as long as the function.
    """

    kernel: Any
    signature: Any
    arrays: Sequence[np.ndarray] = ()
    kept: Any = None

    def __reduce__(self) -> Any:
        return type(self), (self.kernel, self.signature, self.arrays, self.kept)

    @functools.cached_property
    def address(self) -> int:
        """Address of the function's memory, which begins with the address of its code."""
        native = [np.asarray(a, a.dtype.newbyteorder("=")) for a in self.arrays]
        self.arrays = [a if a.flags.forc and a.flags.aligned else a.copy("C") for a in native]
        kinds = tuple(
            types.Array(typeof(a).dtype, a.ndim, "C" if a.flags.c_contiguous else "F")
            for a in self.arrays
        )
        key = self.kernel, self.signature, kinds
        with global_compiler_lock:
            if key not in _codes:
                file = cached_file(self.signature, kinds, kernel=self.kernel)
                name = f"amc_pymc.first_class.{file.name if file else len(_codes)}"
                state = read_cached(file)
                if state is not None:
                    codegen = cpu_target.target_context.codegen()
                    library = codegen.unserialize_library(pickle.loads(state))
                else:
                    with compiling(self.kernel, self.signature.args):
                        library = _compiled(self.kernel, self.signature, kinds, name)
                    if file and not library.has_dynamic_globals:
                        write_cached(file, pickle.dumps(library.serialize_using_object_code()))
                _codes[key] = library, library.get_pointer_to_function(name)
        self._words = words_of([_codes[key][1], *self.arrays])
        return int(self._words.ctypes.data)


#: Code by kernel, signature and types of bound arrays. It is never freed, because compiled loops refer to it.
_codes: dict[tuple[Any, ...], tuple[Any, int]] = {}


def first_class(signature: Any, *, cache: bool = False) -> Callable[[Any], Any]:
    """Compile a function as a :class:`FirstClassFunction`; decorator.

    Parameters
    ----------
    signature : numba signature
        Types of the arguments and the result.
    cache : bool
        Whether to keep the machine code on disk.

    Examples
    --------
    >>> from numba import njit, types
    >>> from amc_pymc.engine.jit import first_class
    >>> @first_class(types.float64(types.float64))
    ... def half(x):
    ...     return 0.5 * x
    >>> @njit
    ... def twice(function, x):
    ...     return function(function(x))
    >>> twice(half, 8.0)
    2.0
    """
    return lambda function: FirstClassFunction(njit(cache=cache)(function), signature)


def _compiled(kernel: Any, signature: Any, kinds: tuple[Any, ...], name: str) -> Any:
    """Compile the kernel, and a function that reads the bound arrays and calls it."""
    context, part = cpu_target.target_context, kernel.part((*signature.args, *kinds))
    library = JITCodeLibrary(context.codegen(), name)
    library.enable_object_caching()
    module = library.create_ir_module(name)
    function = ir.Function(module, _function_type(context, signature), name)
    builder = ir.IRBuilder(function.append_basic_block())
    words, *given = function.args
    place = 1
    for kind in kinds:
        given.append(array_at(context, builder, kind, words, place))
        place += _HEAD + 2 * kind.ndim
    result, convention = part.signature.return_type, context.call_conv
    native = context.declare_function(module, part.fndesc)
    status, out = convention.call_function(builder, native, result, part.signature.args, given)
    with cgutils.if_unlikely(builder, status.is_error):
        python = context.get_python_api(builder)
        lock = python.gil_ensure()
        convention.raise_error(builder, python, status)
        python.err_write_unraisable(python.get_null_object())
        python.gil_release(lock)
    builder.ret(context.cast(builder, out, result, signature.return_type))
    library.add_ir_module(module)
    library.add_linking_library(part.library)
    library.finalize()
    set_environments(library)
    return library


def _function_type(context: Any, signature: Any) -> ir.FunctionType:
    values = [context.get_value_type(t) for t in signature.args]
    return ir.FunctionType(context.get_value_type(signature.return_type), [_WORDS, *values])


# --- from compiled code -----------------------------------------------------------------------------


def _call(context: Any, builder: Any, signature: Any, words: Any, given: Sequence[Any]) -> Any:
    kind = _function_type(context, signature).as_pointer()
    return builder.call(builder.inttoptr(word_at(builder, words, 0), kind), [words, *given])


def caller(signature: Any) -> Callable[..., Any]:
    """Return ``call(address, arguments)`` for calling first-class functions by addresses that arrays hold.

    Parameters
    ----------
    signature : numba signature

    Returns
    -------
    intrinsic
        Takes an address (int64) of a :class:`FirstClassFunction` and a tuple of arguments.

    Examples
    --------
    >>> import numpy as np
    >>> from numba import njit, types
    >>> from amc_pymc.engine.jit import caller, first_class
    >>> signature = types.float64(types.float64)
    >>> call = caller(signature)
    >>> @first_class(signature)
    ... def half(x):
    ...     return 0.5 * x
    >>> @njit
    ... def both(addresses, x):
    ...     return call(addresses[0], (x,)) + call(addresses[1], (x,))
    >>> float(both(np.array([half.address] * 2), 3.0))
    3.0
    """

    @intrinsic
    def call(typingctx: Any, address: Any, arguments: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
            given = cgutils.unpack_tuple(builder, values[1])
            return _call(context, builder, signature, builder.inttoptr(values[0], _WORDS), given)

        return signature.return_type(types.int64, types.Tuple(signature.args)), codegen

    return call


class _FirstClassType(types.Callable):
    """Numba's type of a :class:`FirstClassFunction`, determined by its signature; made from a function."""

    def __init__(self, function: FirstClassFunction, context: Any):
        self.signature = function.signature
        super().__init__(f"FirstClass({self.signature})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        expected = self.signature.args
        if kws or len(args) != len(expected):
            raise errors.TypingError(f"{self} takes {len(expected)} positional arguments")
        for given, kind in zip(args, expected):
            if context.can_convert(given, kind) is None:
                raise errors.TypingError(f"{self} does not take {given}")
        return Signature(self.signature.return_type, expected, recvr=self)

    def get_call_signatures(self) -> Any:
        return [self.signature], False

    def get_impl_key(self, sig: Any) -> Any:
        return _FirstClassType


register_model(_FirstClassType)(AddressModel)
unbox(_FirstClassType)(unbox_address)
typeof_impl.register(FirstClassFunction)(_FirstClassType)


@lower_builtin(_FirstClassType, _FirstClassType, types.VarArg(types.Any))
def _lower_call(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return _call(context, builder, signature.args[0].signature, args[0], args[1:])


@lower_constant(_FirstClassType)
def _lower_constant(context: Any, builder: Any, kind: Any, function: FirstClassFunction) -> Any:
    """Functions that others close over."""
    address = context.add_dynamic_addr(builder, function.address, info=str(kind))
    return builder.bitcast(address, _WORDS)


# --- kernels for all ----------------------------------------------------------------------------------


@njit(cache=True)
def fill(out: np.ndarray, values: np.ndarray) -> None:
    """Copy values (n,) to an array; Numba's own assignment to slices takes longer to compile."""
    for k in range(values.size):
        out[k] = values[k]
