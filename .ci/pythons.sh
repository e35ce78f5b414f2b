# Sourced by the scripts beside this: which Pythons are here.

new_enough() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# Every CPython from 3.11 on: what PATH names, then pyenv's. One interpreter for each minor version.
pythons() {
    local candidate real minor seen=" "
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 \
        "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/3.*/bin/python3; do
        candidate=$(command -v "$candidate" 2>/dev/null) || continue
        new_enough "$candidate" || continue
        minor=$(version_of "$candidate")
        case "$seen" in *" $minor "*) continue ;; esac
        seen="$seen$minor "
        real=$("$candidate" -c 'import sys; print(sys.executable)')
        printf '%s %s\n' "$minor" "$real"
    done
}
