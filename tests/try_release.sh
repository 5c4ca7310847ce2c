#!/usr/bin/env bash
# Installs a release in a new folder, with what a deployment installs and no more, and streams one request through it:
# bash tests/try_release.sh dist/hopbase-VERSION.tar.gz python3.11
set -euo pipefail
unset ${!HOPBASE_*} SECRET_KEY DEBUG ALLOWED_HOSTS REDIS_URL DATABASE_URL
archive=$(realpath "$1")
folder=$(mktemp -d /tmp/hb-release-XXXXXX)
started=()
end() {
    [ ${#started[@]} -eq 0 ] || { kill "${started[@]}" 2>/dev/null || true; wait "${started[@]}" || true; }
    rm -rf "$folder"
}
trap end EXIT

(cd "$(dirname "$archive")" && sha256sum --check SHA256SUMS)
tar -xzf "$archive" -C "$folder" --strip-components=1
cd "$folder"
"$2" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-runtime.txt
.venv/bin/pip check
hb() { .venv/bin/python manage.py "$@"; }
hb version

read -r port provider_port < <("$2" -c '
import socket
both = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in both))')
export HOPBASE_ENV_FILE="$folder/state/env" HOPBASE_VAR_DIR="$folder/state" HOPBASE_DRAIN_S=5
export DEMO_API_KEY="hb-$(openssl rand -hex 20)" DEMO_PROVIDER_KEY="sk-$(openssl rand -hex 20)"
mkdir -m 0700 state
hb make_secrets > state/env
hb migrate --verbosity 0
sed "s/127.0.0.1:9101/127.0.0.1:$provider_port/" hopbase_site/demo/demo.yaml > state/demo.yaml
hb apply state/demo.yaml

.venv/bin/python -c '
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
listener.set_inheritable(True)
os.execv(sys.executable, [sys.executable, "-m", "hopbase_site.demo.provider", "--fd", str(listener.fileno())])
' "$provider_port" &
started+=($!)
.venv/bin/python manage.py serve --port "$port" 2> state/serve.log &
gateway=$!
started+=("$gateway")
at="http://127.0.0.1:$port"
curl --silent --fail --retry 60 --retry-delay 1 --retry-all-errors --output /dev/null "$at/readyz"
grep "serves on" state/serve.log

echo "== worker"
.venv/bin/celery -A hopbase_site worker --beat --concurrency 1 --loglevel warning > state/worker.log 2>&1 &
started+=($!)
for _ in {1..20}; do
    ! .venv/bin/celery -A hopbase_site inspect ping --timeout 3 2> /dev/null || break
done | tee state/ping
grep --quiet "1 node online" state/ping

echo "== pages"
curl --fail --silent --show-error "$at/healthz"
echo
for path in /admin/login/ /static/hopbase/admin.css /docs/ /docs/zh-Hant/quickstart; do
    curl --fail --silent --show-error --location --output /dev/null --write-out "%{http_code} $path\n" "$at$path"
done
curl --fail --silent --header "Accept-Language: zh-Hant" "$at/admin/login/" | grep --only-matching --max-count 1 "登入" | head -1

echo "== a streamed request"
curl --fail --silent --show-error --no-buffer --dump-header state/headers "$at/v1/chat/completions" \
    --header "Authorization: Bearer $DEMO_API_KEY" --header "Content-Type: application/json" \
    --data '{"model":"gpt-5.6-sol","stream":true,"messages":[{"role":"user","content":"What is a gateway?"}]}' > state/stream
grep --count "^data: " state/stream
grep --line-regexp "data: \[DONE\]" state/stream
name=$(sed -n 's/^x-request-id: \([^\r]*\).*/\1/Ip' state/headers)
curl --fail --silent --show-error --retry 5 --retry-delay 1 --retry-all-errors "$at/v1/usage/requests/$name" \
    --header "Authorization: Bearer $DEMO_API_KEY" | tee state/record
echo
grep --quiet '"ending":"complete","metering":"reported"' state/record

echo "== its end"
kill "$gateway"
wait "$gateway"
echo "$archive can be installed and serves"
