"""Names of Numba and llvmlite that are not public: each test says what broke when a new version has moved one."""

import importlib
import inspect

import pytest

from numba.core import compiler, dispatcher
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import CPUDispatcher, cpu_target

#: Module, name, and what needs it.
NAMES = [
    ("numba.core.caching", "NullCache", "jit: machine code on disk"),
    ("numba.core.compiler", "compile_extra", "jit: parts"),
    ("numba.core.compiler", "CompileResult._rebuild", "jit: machine code on disk"),
    ("numba.core.compiler", "CompileResult._reduce", "jit: machine code on disk"),
    ("numba.core.dispatcher", "_FunctionCompiler.fold_argument_types", "jit: calls of parts"),
    ("numba.core.event", "install_listener", "jit: names of functions that are compiled"),
    ("numba.core.typing.templates", "make_concrete_template", "jit: calls of parts"),
    ("numba.core.sigutils", "normalize_signature", "jit: calls of parts"),
    ("numba.core.codegen", "CPUCodeLibrary._optimize_final_module", "jit: parts"),
    ("numba.core.codegen", "CPUCodeLibrary._finalize_final_module", "jit: parts"),
    ("numba.core.codegen", "CPUCodeLibrary._finalize_dynamic_globals", "jit: parts"),
    ("numba.core.codegen", "CPUCodeLibrary._get_module_for_linking", "jit: parts; printer"),
    ("numba.core.codegen", "CPUCodeLibrary._optimize_functions", "printer: printed code"),
    ("numba.core.codegen", "CPUCodeLibrary.serialize_using_object_code", "jit: the cache"),
    ("numba.core.codegen", "Codegen.unserialize_library", "jit: the cache"),
    ("numba.core.cgutils", "unpack_tuple", "jit, printer"),
    ("numba.core.imputils", "lower_constant", "jit: functions in closures"),
    ("numba.core.typing.templates", "AttributeTemplate", "jit: fields"),
    ("numba.core.datamodel.models", "PrimitiveModel", "jit: memory"),
    ("numba.extending", "lower_getattr_generic", "jit: fields"),
    ("llvmlite.binding", "create_mcjit_compiler", "printer: code that can be freed"),
    ("llvmlite.binding.object_file", "ObjectFileRef.from_data", "printer: the cache"),
]


@pytest.mark.parametrize(("module", "name", "use"), NAMES, ids=[n for _, n, _ in NAMES])
def test_name_exists(module, name, use):
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
        assert found is not None, f"{module}.{name} has gone; amc_pymc.engine.{use}"


#: Function, its arguments as they are used.
ARGUMENTS = [
    (dispatcher._FunctionCompiler, "py_func targetdescr targetoptions locals pipeline_class"),
    (
        compiler.compile_extra,
        "typingctx targetctx func args return_type flags locals library pipeline_class",
    ),
    (JITCodeLibrary, "codegen name"),
]


@pytest.mark.parametrize(("function", "names"), ARGUMENTS)
def test_arguments_are_as_they_were(function, names):
    assert list(inspect.signature(function).parameters) == names.split()


def test_attributes_of_instances():
    """Which no class shows."""
    codegen = cpu_target.target_context.codegen()
    assert codegen._library_class is JITCodeLibrary, "jit: libraries of what parts call"
    library = codegen.create_library("empty")
    for name in ("_linking_libraries", "_final_module", "_reload_init", "_codegen", "_finalized"):
        assert hasattr(library, name), f"jit: {name} of a library"
    flags = compiler.Flags()
    assert {"no_compile", "no_cpython_wrapper", "no_cfunc_wrapper"} <= {*dir(flags)}
    kernel = CPUDispatcher(lambda x: x, targetoptions={"nopython": True})
    assert hasattr(kernel, "_cache") and hasattr(kernel, "_compiler"), "jit: Kernel"
