#!/bin/sh
# Kits for the demonstration in compose.yaml: a coordinator and three hospitals of the heart data, each kit copied to
# where only its owner will see it. In earnest every hospital fills in its own file, reads the study and approves it.
#
#     setup.sh KITS [HOST [PORT [STATE]]]
#
# KITS gets one folder for each kit; HOST is what hospitals call the coordinator. Hospitals keep their state in STATE,
# in which `%s` stands for the hospital. OWNER in the environment, such as 10001:10001, is given everything.
set -eu
umask 077
kits=$1
host=${2:-coordinator}
port=${3:-9090}
state=${4:-/state}

if [ -e "$kits/coordinator/coordinator.toml" ]; then
    echo "There are kits in $kits already; keys are never overwritten."
    exit 0
fi
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
wardround provision new "$(dirname "$0")/demo.toml" --sites cleveland,hungarian,va \
    --host "$host" --port "$port" --out "$made/kits"
for name in cleveland hungarian va; do
    kit=$made/kits/sites/$name
    place=$(printf "$state" "$name")
    # the hospital's own part: where its rows are, and where its state is kept
    sed -i -e '/^\[data\]$/,/^\[policy\]$/{/^\[policy\]$/!d}' -e "s|^state = .*|state = \"$place\"|" "$kit/site.toml"
    printf '\n[data]\nsource = "heart"\nhospitals = ["%s"]\n' "$name" >> "$kit/site.toml"
    wardround approve "$kit/study.toml" --site "$kit/site.toml" --name "demonstration" --yes > /dev/null
    mkdir -p "$kits/$name"
    cp -R "$kit/." "$kits/$name/"
done
mkdir -p "$kits/coordinator"
cp -R "$made/kits/coordinator/." "$kits/coordinator/"
mkdir "$kits/coordinator/link"  # a mount point: the kit itself is read-only
[ -z "${OWNER:-}" ] || chown -R "$OWNER" "$kits"
echo "The kits are where their owners find them."
