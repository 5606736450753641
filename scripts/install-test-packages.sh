#!/bin/sh
# Install the Debian packages that some tests can use. Those tests skip without them, so nothing here may fail a
# build: whatever goes wrong is said in one line and the script ends well.

packages="dataset-fashion-mnist chromium"

skip() {
    echo "install-test-packages: skipped: $1"
    exit 0
}

missing=""
for package in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null 2>&1 || skip "no apt-get here, so not installed:$missing"
[ "$(id -u)" -eq 0 ] || skip "not root; as root: apt-get install$missing"

# Usage: apt_get SECONDS ARGUMENT... Keeps only apt's last line, for the message.
apt_get() {
    seconds=$1
    shift
    output=$(DEBIAN_FRONTEND=noninteractive timeout --kill-after=10 "$seconds" apt-get -qq \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=20 "$@" 2>&1 </dev/null)
    code=$?
    [ "$code" -eq 0 ] && return
    reason=$(printf '%s\n' "$output" | tail -n 1)
    case $code in 124 | 137) reason="no end after $seconds seconds" ;; esac
    return 1
}

# Downloaded first and by itself: the network is what hangs, and stopping a download leaves no half-installed package.
# $missing is unquoted on purpose: one word per package.
download() {
    apt_get 120 install --download-only --yes --no-install-recommends $missing
}

download || { apt_get 60 update && download; } || skip "cannot download$missing: $reason"
apt_get 60 install --no-download --yes --no-install-recommends $missing || skip "cannot install$missing: $reason"
echo "install-test-packages: installed$missing"
