#!/bin/sh
# Print the path of a Python interpreter that can run amc_pymc, or explain what is missing.
#
# Every candidate is executed: a name on PATH may be a shim for a version that is not installed,
# and a system Python may lack the modules that make a virtual environment.
# Set PYTHON to choose the interpreter yourself.

probe='
import sys, sysconfig
import ensurepip, venv
ok = (
    (3, 12) <= sys.version_info[:2] < (3, 15)
    and sys.implementation.name == "cpython"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
print(sys.executable if ok else "")
'

# usable CANDIDATE: print the real path behind it, or fail.
usable() {
    [ -n "$1" ] || return 1
    found=$("$1" -c "$probe" 2>/dev/null </dev/null) || return 1
    [ -n "$found" ] && printf '%s\n' "$found"
}

if [ -n "${PYTHON:-}" ]; then
    usable "$PYTHON" && exit 0
    echo "PYTHON=$PYTHON cannot be used: it must run as CPython 3.12, 3.13 or 3.14" >&2
    echo "and have the modules venv and ensurepip." >&2
    exit 1
fi

for name in python3 python python3.12 python3.13 python3.14; do
    usable "$name" && exit 0
done

pyenv_root=$(pyenv root 2>/dev/null) || pyenv_root=
for root in "$pyenv_root" "${PYENV_ROOT:-}" "${HOME:-}/.pyenv"; do
    [ -d "$root/versions" ] || continue
    for candidate in "$root"/versions/*/bin/python3; do
        usable "$candidate" && exit 0
    done
done

if command -v uv >/dev/null 2>&1; then
    usable "$(uv python find '>=3.12,<3.15' 2>/dev/null)" && exit 0
fi

cat >&2 <<'EOF'
No usable Python found. amc_pymc needs CPython 3.12, 3.13 or 3.14 with the modules venv and
ensurepip. Install one, for instance with
    Debian, Ubuntu    apt-get install python3 python3-venv
    macOS             brew install python@3.13
    pyenv             pyenv install 3.12
    uv                uv python install 3.12
or name an interpreter: make PYTHON=/path/to/python3.12 ...
EOF
exit 1
