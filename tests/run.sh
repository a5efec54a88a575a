#!/usr/bin/env bash
# Sets up everything that the tests need, then runs them: `bash tests/run.sh [pytest options]`.
set -euo pipefail
cd "$(dirname "$0")/.."

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "Python 3.11 or newer is needed; this is $(python3 --version)." >&2
  exit 2
}
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt

# The browser tests take any Chromium; where there is none, Debian's, if this user may install it.
if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null &&
   ! command -v google-chrome >/dev/null; then
  root=""
  [ "$(id -u)" = 0 ] || root="sudo -n"
  if command -v apt-get >/dev/null && $root true 2>/dev/null; then
    $root apt-get update -qq >/dev/null
    DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends \
      chromium fonts-dejavu-core fonts-noto-color-emoji >/dev/null
  else
    echo "No Chromium here and no right to install one: the browser tests will say so." >&2
  fi
fi

.venv/bin/ruff check .
.venv/bin/ruff format --check .
# Two workers, each with an app and a browser of its own; one thread each, or they would await each
# other's cores.
export OMP_NUM_THREADS=1
exec .venv/bin/python -m pytest -n 2 --dist loadfile "$@"
