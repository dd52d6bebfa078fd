#!/bin/sh
# Called by `make slurm-newer VERSION`: gets the source tarball of Debian trixie's Slurm from the archive that this
# machine's apt uses, and builds it by `holdfast lab slurm build`. As root on Debian or Ubuntu; apt's own lists and
# sources stay as they are.
set -e
version=$1 holdfast=$2
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
    { echo "as root on Debian; elsewhere: holdfast lab slurm build $version --source TARBALL"; exit 1; }
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    gcc make bzip2 libmunge-dev libjson-c-dev libhttp-parser-dev libyaml-dev libmariadb-dev >/dev/null
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/lists/partial" "$folder/cache" "$folder/sources"
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
cat >"$folder/sources/trixie.sources" <<END
Types: deb-src
URIs: $archive
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
apt() {
    apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$folder/sources" \
        -o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root "$@"
}
apt update
cd "$folder"
apt source --download-only --tar-only slurm-wlm
"$holdfast" lab slurm build "$version"
