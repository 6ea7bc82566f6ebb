#!/bin/sh
# setup.sh VENV LOCK...: a virtual environment that holds exactly what the locks name, each file checked by its hash.
# Every lock is complete, so nothing is resolved here; the checkout itself is put on the module path.
set -eu
venv=$1
shift

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

find_python() {
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if fits "$name"; then
            command -v "$name"
            return
        fi
    done
    echo "No Python 3.11, 3.12 or 3.13 was found. Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2
    exit 1
}

if [ -x "$venv/bin/python" ] && ! fits "$venv/bin/python"; then
    rm -rf "$venv"
fi
echo "Setting up $venv, with every package by the lock: a minute or a few, this once." >&2
if command -v uv >/dev/null 2>&1; then
    [ -x "$venv/bin/python" ] || uv venv -q -p "$(find_python)" "$venv"
    uv pip sync -q --require-hashes -p "$venv/bin/python" "$@"
else
    [ -x "$venv/bin/python" ] || "$(find_python)" -m venv "$venv"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
    arguments=
    for lock in "$@"; do arguments="$arguments -r $lock"; done
    # shellcheck disable=SC2086 # one word each
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes $arguments
fi
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pwd >"$packages/livekit_unified_memory_checkout.pth"
